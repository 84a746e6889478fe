//! The documents of `--json`. Each is an object with the number of its schema, which changes when a field changes its
//! meaning or goes; new fields may appear without that.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The number of the schema of all documents.
const SCHEMA: u64 = 1;

/// The text of a document with these fields.
pub fn document(fields: Value) -> String {
    let mut document = json!({ "schema": SCHEMA });
    if let (Value::Object(all), Value::Object(fields)) = (&mut document, fields) {
        all.extend(fields);
    }
    format!("{document:#}\n")
}

/// Adds a name to an object: as text; if it is not UTF-8 also its bytes, in base64 under `NAME_base64`.
pub fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    object.insert(name.into(), text.clone().into());
    if matches!(text, std::borrow::Cow::Owned(_)) {
        object.insert(format!("{name}_base64"), STANDARD.encode(bytes).into());
    }
}

/// An object with one name, to which `fields` are added.
pub fn with_bytes(name: &str, bytes: &[u8], fields: Value) -> Value {
    let mut object = Map::new();
    insert_bytes(&mut object, name, bytes);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_text_keep_their_bytes() {
        assert_eq!(with_bytes("path", "é".as_bytes(), json!({})), json!({"path": "é"}));
        assert_eq!(
            with_bytes("path", b"a\xff", json!({"size": 1})),
            json!({"path": "a\u{fffd}", "path_base64": "Yf8=", "size": 1})
        );
    }

    #[test]
    fn a_document_begins_with_its_schema() {
        assert_eq!(document(json!({"a": 1})), "{\n  \"schema\": 1,\n  \"a\": 1\n}\n");
    }
}
