//! `--metrics` of the servers, and the dashboard of examples/metrics.

use super::serve::Server;
use super::serve_vhost_user_blk::front_end::{Driver, FLUSH, Queue, WRITE_OUT, feature};
use super::{refused, run_ok, volume, write};
use crate::process::tool;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// The whole reply to a request.
fn request(mut stream: impl Read + Write, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The page at a URL that a server has printed.
fn page(url: &str) -> String {
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    body(&request(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))
}

fn body(reply: &str) -> String {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

/// The value of a sample that begins so.
fn value(page: &str, sample: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} in {page}")).parse().unwrap()
}

/// Prometheus' own checker finds nothing wrong with a page.
fn check(page: &str) {
    let mut checker = Command::new("promtool");
    checker.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut checker = checker.stderr(Stdio::piped()).spawn().expect("the package prometheus");
    checker.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = checker.wait_with_output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && out.is_empty() && err.is_empty(), "{out}{err}");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let mut series = BTreeSet::new();
    for (name, _) in samples.filter_map(|line| line.rsplit_once(' ')) {
        assert!(series.insert(name), "{name} stands there twice");
    }
}

const CONFIG: &str = "
metrics = \"127.0.0.1:0\"
[[nbd]]
unix = \"nbd\"
targets = [\"v:/a\", \"v:/b \\\\\\\"\"]
[[vhost-user-blk]]
socket = \"c\"
target = \"v:/c\"
[[nbd]]
unix = \"r\"
targets = [\"memory:1M\", \"v:/a\"]
read-only = true
";

/// A server of a configuration, and the URL of its metrics.
fn serve(folder: &Path) -> (Server, String, String) {
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b \\\"", "v:/c"]);
    write(folder, "serve.toml", CONFIG);
    let mut server = Server::serve(folder, &["--config", "serve.toml"]);
    let lines = [(); 6].map(|()| server.line());
    (server, lines[0].clone(), lines[5].clone())
}

#[test]
fn each_volume_and_each_disk_has_its_counters() {
    let folder = volume();
    let folder = folder.path();
    let (server, uri, metrics) = serve(folder);
    let before = page(&metrics);
    check(&before);
    let a = r#"{protocol="nbd",disk="a",target="v:/a",address="nbd""#;
    let c = r#"{protocol="vhost-user-blk",disk="v:/c",target="v:/c",address="c""#;
    let of = |name: &str, disk: &str, operation: &str| match operation {
        "" => format!("uringfs_disk_{name}{disk}}}"),
        _ => format!("uringfs_disk_{name}{disk},operation=\"{operation}\"}}"),
    };
    assert_eq!(value(&before, &of("size_bytes", a, "")), 1 << 20);
    assert_eq!(value(&before, &of("requests_total", a, "write")), 0);
    assert_eq!(value(&before, r#"uringfs_volume_size_bytes{volume="v"}"#), 32 << 20);
    assert_eq!(value(&before, "uringfs_config_last_reload_successful"), 1);
    assert_eq!(before.matches("\nuringfs_disk_read_only").count(), 5);
    assert!(before.contains(r#"target="v:/b \\\"",address="nbd"} 0"#), "{before}");

    let script = "h.connect_uri(uri); h.pwrite(b'x' * 8192, 0); h.pwrite(b'x' * 512, 0)";
    let script = format!("{script}; h.flush(); h.pread(4096, 0)");
    tool("/usr/bin/python3", &["-m", "nbd", "-c", &format!("uri = '{uri}'"), "-c", &script]);
    let mut driver = Driver::new(&folder.join("c"), feature::FLUSH, Queue::split(0, 64));
    assert_eq!(driver.run(WRITE_OUT, 0, 4096).0, 0);
    assert_eq!(driver.run(WRITE_OUT, 1 << 40, 4096).0, 1);
    assert_eq!(driver.run(FLUSH, 0, 0).0, 0);
    let after = page(&metrics);
    check(&after);
    for (name, disk, operation, expected) in [
        ("requests_total", a, "write", 2),
        ("requests_total", a, "read", 1),
        ("requests_total", a, "flush", 1),
        ("bytes_total", a, "write", 8704),
        ("bytes_total", a, "read", 4096),
        ("errors_total", a, "", 0),
        ("requests_total", c, "flush", 1),
        ("bytes_total", c, "write", 4096),
        ("bytes_total", c, "read", 0),
        ("errors_total", c, "", 1),
    ] {
        assert_eq!(value(&after, &of(name, disk, operation)), expected, "{name} {operation}");
    }
    let commits = r#"uringfs_volume_commits_total{volume="v"}"#;
    assert!(value(&after, commits) >= value(&before, commits));
    let slow = "uringfs_direct_slow_path_total";
    assert!(value(&after, slow) > value(&before, slow));
    // Without its disks the volume is closed, and shown no more.
    write(folder, "serve.toml", "metrics = \"127.0.0.1:0\"");
    drop(driver);
    let reload = super::command(folder, ["ctl", "reload", "serve.toml"])
        .env("XDG_RUNTIME_DIR", folder)
        .output()
        .unwrap();
    assert!(reload.status.success());
    assert!(!page(&metrics).contains("volume=\"v\""));
    run_ok(folder, ["ls", "v:/"]);
    server.stop();
}

#[test]
fn only_this_machine_reaches_the_metrics_unless_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let nbd =
        |metrics: &'static str| ["serve", "nbd", "memory:1M", "--unix", "s", "--metrics", metrics];
    refused(
        folder,
        nbd("0.0.0.0:0"),
        "--metrics 0.0.0.0:0: every program that reaches this address",
    );
    refused(folder, nbd("no port"), "write HOST:PORT");
    let guest = ["serve", "vhost-user-blk", "memory:1M", "--socket", "s", "--metrics", "[::]:0"];
    refused(folder, guest, "or --insecure");
    write(folder, "serve.toml", "metrics = \"0.0.0.0:0\"\n");
    refused(folder, ["serve", "--config", "serve.toml"], "serve.toml:1: metrics: 0.0.0.0:0: every");
    let mut server = Server::serve(folder, &[&guest[1..], &["--insecure"]].concat());
    server.line();
    assert!(server.line().starts_with("http://"));
    server.stop();
    let mut server = Server::serve(folder, &nbd("./metrics")[1..]);
    server.line();
    let socket = server.line();
    assert_eq!(socket, folder.join("metrics").to_str().unwrap());
    let reply = request(UnixStream::connect(&socket).unwrap(), "GET /metrics HTTP/1.0\r\n\r\n");
    check(&body(&reply));
    // Clients that say nothing hold up neither others nor the end.
    let silent: Vec<_> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let reply = request(UnixStream::connect(&socket).unwrap(), "GET / HTTP/1.1\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 404 "), "{reply}");
    drop(silent);
    server.stop();
    assert!(!Path::new(&socket).exists());
}

#[test]
fn clients_that_stall_send_too_much_or_go_hold_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let arguments = ["nbd", "memory:1M", "--unix", "s", "--metrics", "./metrics"];
    let mut server = Server::serve(folder, &arguments);
    server.line();
    let socket = server.line();
    let connect = || UnixStream::connect(&socket).unwrap();
    let check_served = || {
        let reply = request(connect(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    };
    let mut stalled: Vec<_> = (0..5).map(|_| connect()).collect();
    for stream in &mut stalled {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
    }
    check_served();
    // The end of one that has sent too much may come before all of it is sent.
    let mut long = connect();
    let sent = long.write_all(&b"GET /metrics HTTP/1.1\r\nA: ".repeat(1 << 16));
    let mut reply = Vec::new();
    let read = long.read_to_end(&mut reply);
    let is_refused = reply.starts_with(b"HTTP/1.1 431 ") || reply.starts_with(b"HTTP/1.1 400 ");
    assert!(is_refused || sent.is_err() || read.is_err(), "{}", String::from_utf8_lossy(&reply));
    check_served();
    let head = b"GET /metrics HTTP/1.1\r\n\r\n";
    for length in 0..=head.len() {
        connect().write_all(&head[..length]).unwrap();
    }
    check_served();
    // More than are served at a time: each ends when its time is over.
    stalled.extend((0..10).map(|_| connect()));
    check_served();
    server.stop();
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let words = text.split(|byte| !is_name(byte)).filter(|word| word.starts_with("uringfs_"));
    words.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_guide_name_metrics_that_exist() {
    let folder = volume();
    let (server, _, metrics) = serve(folder.path());
    let page = page(&metrics);
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let served: BTreeSet<_> = lines.map(str::to_owned).collect();
    server.stop();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let dashboard = fs::read_to_string(root.join("examples/metrics/grafana.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() > 5);
    let shown = names(&dashboard);
    assert_eq!(shown.difference(&served).collect::<Vec<_>>(), [""; 0]);
    // Those of volumes and disks are all shown.
    let is_own =
        |name: &&String| name.starts_with("uringfs_volume") || name.starts_with("uringfs_disk");
    let own: BTreeSet<_> = served.iter().filter(is_own).cloned().collect();
    let hidden = ["uringfs_disk_read_only", "uringfs_volume_pending_bytes"];
    assert_eq!(own.difference(&shown).collect::<Vec<_>>(), hidden);
    let guide = fs::read_to_string(root.join("docs/guide/serve.md")).unwrap();
    let described = names(&guide);
    assert_eq!(own.difference(&described).collect::<Vec<_>>(), [""; 0]);
    let other: Vec<_> = described.difference(&served).collect();
    assert_eq!(other, [""; 0]);
}
