//! The paths in the tokens of a macro or an attribute, which nobody has parsed.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree::name_of;

/// Gives each path of names and `::` to `each`, with `prefix` before it: what stands in `a::{..}` has `a`.
pub(crate) fn paths_in(tokens: TokenStream, prefix: &[String], each: &mut dyn FnMut(&[String])) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => paths_in(group.stream(), &[], each),
            TokenTree::Ident(first) => {
                let belongs = belongs_to_what_is_before(&tokens[..at], first == "crate");
                let mut path = prefix.to_vec();
                path.push(name_of(first));
                while is_colons(&tokens[at + 1..]) {
                    match tokens.get(at + 3) {
                        Some(TokenTree::Ident(next)) => path.push(name_of(next)),
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            paths_in(group.stream(), &path, each);
                            path.clear();
                        }
                        _ => break,
                    }
                    at += 3;
                }
                if !belongs && !path.is_empty() {
                    each(&path);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether a name is a field, a method, a lifetime, a variable of a macro, or follows a `::` that no
/// name of this crate is before. `$crate` is `crate`.
fn belongs_to_what_is_before(before: &[TokenTree], is_crate: bool) -> bool {
    match before {
        [.., dot, last] if is(dot, '.') && is(last, '.') => false,
        [.., last] if is(last, '$') => !is_crate,
        [.., last] if is(last, '.') || is(last, '\'') => true,
        [.., _, _] => is_colons(&before[before.len() - 2..]),
        _ => false,
    }
}

fn is_colons(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, ..] if is(first, ':') && is(second, ':'))
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}
