//! The code of the README and of the guide's page.

use std::fs;
use std::path::Path;

use crate::harness::{Language, Program, folder, run_compiler};

/// The blocks of C in a page.
fn blocks(page: &str) -> Vec<String> {
    let page = fs::read_to_string(folder().join("../..").join(page)).expect("the page is there");
    let blocks = page.split("```c\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Compiles a program, and runs it in a folder. Returns what it prints.
fn run_in(folder: &Path, text: &str) -> String {
    let source = folder.join("program.c");
    fs::write(&source, text).expect("the folder can be written");
    let program = Program::compile(&source, &[]);
    program.run_in(folder)
}

#[test]
fn the_code_of_the_readme_writes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = blocks("README.md");
    let [block] = &blocks[..] else { panic!("{blocks:?}") };
    let text = format!(
        r#"
        #include <stdio.h>
        #include <uringfs.h>
        int main(void) {{
            struct uringfs_format_options format = {{.size = sizeof format, .bytes = 64 << 20}};
            struct uringfs_volume *created;
            uringfs_volume_create("disk.img", &format, &created);
            uringfs_volume_close(created);
            {block}
            uringfs_file_close(file);
            options.flags = URINGFS_OPEN_READ;
            char bytes[8] = {{0}};
            uringfs_file_open(volume, "/greeting", &options, &file);
            uringfs_file_read(file, bytes, sizeof bytes, 0);
            puts(bytes);
            uringfs_file_close(file);
            return uringfs_volume_close(volume);
        }}
        "#
    );
    assert_eq!(run_in(folder.path(), &text), "hello\n");
}

#[test]
fn the_code_of_the_guide_is_c() {
    let mut blocks = blocks("docs/guide/c.md").into_iter();
    let first = blocks.next().expect("the page has code");
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_in(folder.path(), &first), "");
    // The others are parts of one program.
    let parts: String = blocks.collect();
    let begin =
        "#include <uringfs.h>\nvoid parts(struct uringfs_file *file, char (*buffers)[4096]) {\n";
    let text = format!("{begin}{parts}\n}}\n");
    let options =
        ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-fsyntax-only"];
    run_compiler(Language::C, &options, Some(&text));
}
