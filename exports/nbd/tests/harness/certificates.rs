//! Certificates for TLS.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Certificates as `nbdkit-tls(1)` makes them, in one folder: of an authority, a server and a client.
pub fn certificates(folder: &Path) {
    let certtool = |arguments: &[&str], into: &str| {
        let output = Command::new("certtool").args(arguments).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(folder.join(into), output.stdout).unwrap();
    };
    for name in ["ca", "server", "client"] {
        certtool(&["--generate-privkey", "--key-type=ed25519"], &format!("{name}-key.pem"));
    }
    fs::write(folder.join("ca.info"), "cn = test\nca\ncert_signing_key\nexpiration_days = 2\n")
        .unwrap();
    fs::write(
        folder.join("server.info"),
        "cn = localhost\ndns_name = localhost\nip_address = 127.0.0.1\ntls_www_server\nsigning_key\nexpiration_days = 2\n",
    )
    .unwrap();
    fs::write(
        folder.join("client.info"),
        "cn = client\ntls_www_client\nsigning_key\nexpiration_days = 2\n",
    )
    .unwrap();
    let authority =
        ["--generate-self-signed", "--load-privkey", "ca-key.pem", "--template", "ca.info"];
    certtool(&authority, "ca-cert.pem");
    for name in ["server", "client"] {
        let (key, template) = (format!("{name}-key.pem"), format!("{name}.info"));
        let signed = [
            "--generate-certificate",
            "--load-ca-certificate",
            "ca-cert.pem",
            "--load-ca-privkey",
            "ca-key.pem",
            "--load-privkey",
            &key,
            "--template",
            &template,
        ];
        certtool(&signed, &format!("{name}-cert.pem"));
    }
}
