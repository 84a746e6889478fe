//! HTML as it is written. Only constant text gets into it as it is, everything else is escaped, and each element ends.

use super::escape::escape;
use std::fmt::Display;

/// The attributes of an element, whose values are escaped.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// Elements that end a line of the source.
const END_LINES: [&str; 21] = [
    "caption",
    "dd",
    "details",
    "div",
    "figcaption",
    "figure",
    "g",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "li",
    "p",
    "section",
    "summary",
    "svg",
    "table",
    "title",
    "tr",
    "ul",
];

/// A page, or the part of it that is written.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Adds constant HTML.
    pub fn raw(&mut self, html: &'static str) {
        self.0 += html;
    }

    /// Adds a text.
    pub fn text(&mut self, text: impl Display) {
        self.0 += &escape(&text.to_string());
    }

    /// Adds an element, whose content is written by `content`.
    pub fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        content: impl FnOnce(&mut Self),
    ) {
        self.begin(name, attributes);
        self.0 += ">";
        content(self);
        self.0 += &format!("</{name}>");
        if END_LINES.contains(&name) {
            self.0 += "\n";
        }
    }

    /// Adds an element that has a text.
    pub fn text_element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        text: impl Display,
    ) {
        self.element(name, attributes, |html| html.text(text));
    }

    /// Adds an element of SVG that has no content.
    pub fn shape(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.begin(name, attributes);
        self.0 += "/>\n";
    }

    /// The text of the page.
    pub fn into_string(self) -> String {
        self.0
    }

    fn begin(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.0 += &format!("<{name}");
        for (name, value) in attributes {
            self.0 += &format!(" {name}=\"{}\"", escape(&value.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_values_are_escaped_and_elements_end() {
        let mut html = Html::default();
        html.element("p", &[("title", &"\"><script>"), ("id", &7)], |html| {
            html.raw("<br>");
            html.text_element("b", &[], "<i>");
        });
        html.shape("path", &[("d", &"M0 0")]);
        assert_eq!(
            html.into_string(),
            "<p title=\"&quot;&gt;&lt;script&gt;\" id=\"7\"><br><b>&lt;i&gt;</b></p>\n<path d=\"M0 0\"/>\n"
        );
    }
}
