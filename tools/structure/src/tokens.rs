//! Finds paths in the unparsed tokens of a macro or an attribute.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree::name_of;

/// Calls `each` for each path, with `prefix` before it: for the names in `a::{..}` the prefix is `a`.
pub(crate) fn paths_in(tokens: TokenStream, prefix: &[String], each: &mut dyn FnMut(&[String])) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => paths_in(group.stream(), &[], each),
            TokenTree::Ident(first) => {
                let is_continuation = is_continuation(&tokens[..at], first == "crate");
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
                if !is_continuation && !path.is_empty() {
                    each(&path);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether a name cannot begin a path: a field, a method, a lifetime, a variable of a macro, or a name behind a leading
/// `::`. `$crate` counts as `crate`.
fn is_continuation(before: &[TokenTree], is_crate: bool) -> bool {
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
