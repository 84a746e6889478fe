//! The name of an image, as programs get it from their users. No panics: a name that is parsed is shown in a form that
//! means the same, any other is refused in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs::device::backend::rbd::RbdTarget;

fuzz_target!(|text: &str| {
    let parsed = RbdTarget::parse(&format!("rbd:{text}")).expect("it has the scheme");
    match parsed {
        Ok(target) => {
            assert_eq!(RbdTarget::parse(&target.to_string()), Some(Ok(target.clone())));
            let canonical = target.canonical();
            assert_eq!(RbdTarget::parse(&canonical.to_string()), Some(Ok(canonical.clone())));
            assert_eq!(canonical.canonical(), canonical);
        }
        Err(line) => assert!(!line.is_empty() && (text.contains('\n') || !line.contains('\n'))),
    }
});
