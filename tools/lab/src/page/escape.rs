//! Text from outside in a page: it stays text, and no character of it is invisible.

/// Escapes a text for HTML, in elements and in attributes between quotes. Control characters become symbols (`␛`); characters
/// that have no shape, or that turn the direction of the text, become their numbers (`\u{202e}`).
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\0'..='\x1f' => escaped.extend(char::from_u32(0x2400 + u32::from(character))),
            '\x7f' => escaped.push('␡'),
            _ if is_invisible(character) => escaped.extend(character.escape_unicode()),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Format characters and noncharacters of Unicode; the control characters of ISO 6429.
fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_quotes_are_text() {
        assert_eq!(
            escape("<script>\"&'</script>"),
            "&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;"
        );
        assert_eq!(escape("größe 4k"), "größe 4k");
    }

    #[test]
    fn invisible_characters_are_shown() {
        assert_eq!(escape("a\x1b[1m\0\n\x7f"), "a␛[1m␀␊␡");
        assert_eq!(escape("a\u{202e}b\u{9b}\u{feff}"), "a\\u{202e}b\\u{9b}\\u{feff}");
    }
}
