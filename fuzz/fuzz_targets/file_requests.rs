//! Lines of a client in a session about files. A refusal is one line, and a request means the same when it is sent again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_fuse::control::FileRequest;

fuzz_target!(|line: &[u8]| match FileRequest::from_json(line) {
    Err(reason) => assert!(!reason.contains('\n') && reason.len() < 200, "{reason}"),
    Ok(request) => {
        assert!(request.data_bytes() <= 1 << 20);
        let again = request.to_json().to_string();
        assert_eq!(FileRequest::from_json(again.as_bytes()), Ok(request));
    }
});
