//! A strict reader of pages: it accepts less than a browser, and refuses what could load, run or escape anything.

use std::collections::BTreeSet;

/// An element, with its attributes and all text in it.
#[derive(Debug, Default)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    pub text: String,
    /// The names of the elements around it.
    pub within: Vec<String>,
}

impl Element {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The elements of a page, in the order of their beginnings.
#[derive(Debug)]
pub struct Page(pub Vec<Element>);

impl Page {
    /// Reads a page.
    ///
    /// # Panics
    /// The page is not one that it accepts.
    pub fn parse(page: &str) -> Self {
        let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a page has a doctype");
        let invisible = page.chars().find(|found| found.is_control() && *found != '\n');
        assert_eq!(invisible, None, "a control character");
        let mut elements: Vec<Element> = Vec::new();
        // Indices of the elements that have begun and not ended.
        let mut open: Vec<usize> = Vec::new();
        while let Some((text, after)) = rest.split_once('<') {
            add_text(&mut elements, &open, text);
            let in_style = open.last().is_some_and(|last| elements[*last].name == "style");
            assert!(!in_style || after.starts_with("/style>"), "an element in a style");
            let (tag, after) = after.split_once('>').expect("a tag ends");
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                let ended = open.pop().map(|last| elements[last].name.as_str());
                assert_eq!(ended, Some(name), "the end of an element that has not begun last");
                continue;
            }
            let (tag, is_shape) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            assert!(is_name(name), "the name of an element: {name:?}");
            let within: Vec<String> = open.iter().map(|at| elements[*at].name.clone()).collect();
            check_place(name, &within, is_shape);
            let attributes = parse_attributes(attributes);
            elements.push(Element { name: name.into(), attributes, text: String::new(), within });
            if !is_shape && !["meta", "br"].contains(&name) {
                open.push(elements.len() - 1);
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "the page ends within an element");
        let page = Self(elements);
        page.check_policy();
        page.check_addresses();
        page
    }

    /// The elements of a name.
    pub fn all(&self, name: &str) -> Vec<&Element> {
        self.0.iter().filter(|element| element.name == name).collect()
    }

    /// The only element of a name.
    pub fn only(&self, name: &str) -> &Element {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "elements `{name}`");
        all[0]
    }

    /// The title of the page.
    pub fn title(&self) -> &str {
        let in_head = |element: &&Element| element.within.last().is_some_and(|last| last == "head");
        &self.all("title").into_iter().find(in_head).expect("a page has a title").text
    }

    /// The elements of a class.
    pub fn of_class(&self, class: &str) -> Vec<&Element> {
        self.0.iter().filter(|element| element.attribute("class") == Some(class)).collect()
    }

    /// The policy comes before whatever it forbids.
    fn check_policy(&self) {
        let metas = self.all("meta");
        let is_policy = |element: &&&Element| {
            element.attribute("http-equiv") == Some("Content-Security-Policy")
        };
        let policy = metas.iter().find(is_policy).and_then(|found| found.attribute("content"));
        let policy = policy.expect("a policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'unsafe-inline'; "), "{policy}");
        let position = |name: &str| self.0.iter().position(|element| element.name == name);
        assert!(position("meta") < position("style") && position("meta") < position("body"));
    }

    /// The page has no address but places in itself and its own data.
    fn check_addresses(&self) {
        let ids: Vec<&str> = self.0.iter().filter_map(|element| element.attribute("id")).collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len(), "an id twice: {ids:?}");
        for Element { name, attributes, .. } in &self.0 {
            for (attribute, value) in attributes {
                match attribute.as_str() {
                    "href" => {
                        let own = value.strip_prefix('#').is_some_and(|id| unique.contains(id));
                        let data = value.strip_prefix("data:application/json;base64,");
                        let is_base64 = |data: &str| {
                            data.bytes()
                                .all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
                        };
                        assert!(own || data.is_some_and(is_base64), "{name}: the link {value}");
                    }
                    _ => assert!(
                        !value.contains("//")
                            && !value.contains("http:")
                            && !value.contains("url("),
                        "{name}: the address {value}"
                    ),
                }
            }
        }
        let style = &self.only("style").text;
        let addresses = ["url", "@import", "http", "//", "\\"];
        assert!(!addresses.iter().any(|part| style.contains(part)), "an address in the style");
    }
}

/// Adds a text to all elements around it.
fn add_text(elements: &mut [Element], open: &[usize], text: &str) {
    let in_style = open.last().is_some_and(|last| elements[*last].name == "style");
    let text = if in_style { text.to_owned() } else { decoded(text) };
    assert!(!open.is_empty() || text.trim().is_empty(), "text outside of the page: {text}");
    open.iter().for_each(|at| elements[*at].text += &text);
}

/// A text with its references replaced. No other characters may have a meaning in HTML.
fn decoded(text: &str) -> String {
    let mut parts = text.split('&');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, after) = part.split_once(';').expect("a reference ends");
        decoded += match name {
            "amp" => "&",
            "lt" => "<",
            "gt" => ">",
            "quot" => "\"",
            "#39" => "'",
            other => panic!("the reference &{other};"),
        };
        decoded += after;
    }
    assert!(!text.contains(['<', '>']), "markup in a text: {text}");
    decoded
}

/// ` name="value"`, once or several times.
fn parse_attributes(text: &str) -> Vec<(String, String)> {
    let mut attributes: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("an attribute has a value");
        let (value, after) = after.split_once('"').expect("a value ends");
        assert!(is_name(name), "the name of an attribute: {name:?}");
        assert!(!name.starts_with("on") && name != "style", "the attribute {name}");
        assert!(attributes.iter().all(|(known, _)| known != name), "{name} twice");
        attributes.push((name.into(), decoded(value)));
        rest = match after.strip_prefix(' ') {
            Some(next) => next,
            None => {
                assert_eq!(after, "", "attributes are apart");
                after
            }
        };
    }
    attributes
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Checks that an element may be where it is.
fn check_place(name: &str, within: &[String], is_shape: bool) {
    const SHAPES: [&str; 5] = ["circle", "line", "path", "polyline", "rect"];
    let parent = within.last().map(String::as_str);
    let in_svg = within.iter().any(|around| around == "svg");
    let fits = match name {
        "html" => parent.is_none(),
        "head" | "body" => parent == Some("html"),
        "meta" | "style" => parent == Some("head"),
        "title" => parent == Some("head") || in_svg,
        "g" | "desc" | "text" => in_svg,
        _ if SHAPES.contains(&name) => in_svg,
        _ if in_svg => false,
        "li" => parent == Some("ul"),
        "dt" | "dd" => parent == Some("dl"),
        "tr" => parent == Some("table"),
        "th" | "td" => parent == Some("tr"),
        "summary" => parent == Some("details"),
        "figcaption" => parent == Some("figure"),
        "a" | "br" | "code" | "strong" => parent.is_some_and(|parent| parent != "body"),
        "details" | "div" | "dl" | "figure" | "h1" | "h2" | "h3" | "header" | "p" | "pre"
        | "section" | "svg" | "table" | "ul" => !within.iter().any(|around| around == "p"),
        _ => false,
    };
    assert!(fits, "{name} in {parent:?}");
    assert!(!is_shape || SHAPES.contains(&name), "{name} has no end");
}
