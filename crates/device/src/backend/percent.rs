//! Percent-encoding in URIs.

pub(super) fn decode_text(text: &str) -> Result<String, String> {
    String::from_utf8(decode(text)?).map_err(|_| format!("'{text}' is not UTF-8"))
}

/// Decodes `%` and two digits.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut digit = || (bytes.next()? as char).to_digit(16);
        match byte {
            b'%' => match (digit(), digit()) {
                (Some(high), Some(low)) => decoded.push((high << 4 | low) as u8),
                _ => return Err(format!("'{text}': two digits must follow '%'; write '%' as %25")),
            },
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

/// Encodes all but letters, digits and `-._~/`.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(*byte as char);
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
