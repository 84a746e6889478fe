//! Code that is excluded: only a test, a documentation test or loom compiles it.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether the attributes of `node` exclude it.
pub(crate) fn is_excluded(node: &impl ToTokens) -> bool {
    let outer = |input: ParseStream| {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<TokenStream>()?;
        Ok(attributes)
    };
    outer.parse2(node.to_token_stream()).is_ok_and(|attributes| excludes(&attributes))
}

/// Whether these attributes exclude their item.
pub(crate) fn excludes(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args().is_ok_and(|condition| holds(&condition) == Some(false))
    })
}

/// Whether a condition holds outside of tests and loom; `None` if that depends on something else.
fn holds(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else {
        let tests = ["test", "doctest", "loom"];
        return tests.iter().any(|name| condition.path().is_ident(name)).then_some(false);
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let mut parts = parts.iter().map(holds);
    let (deciding, default) = match list.path.get_ident()?.to_string().as_str() {
        "not" => return parts.next()?.map(|held| !held),
        "all" => (false, true),
        "any" => (true, false),
        _ => return None,
    };
    let mut result = Some(default);
    for part in parts {
        match part {
            Some(held) if held == deciding => return Some(deciding),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}
