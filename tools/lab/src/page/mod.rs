//! Comparisons, sweeps and experiments as one page of HTML: the verdicts first, then tables and plots, the machine, the command, and every sample.
//!
//! The page is whole in its file: it has no script, loads nothing, and has a policy (`Content-Security-Policy`)
//! by which browsers refuse to load anything for it; the addresses of sources are text. Text from outside gets into it only through one type, which escapes it.

mod experiments;
mod sweep_sections;
mod sections;
mod sweep_plots;
mod job_plots;
mod plot;
mod scale;
mod html;
mod escape;

pub use sections::Source;

use crate::compare::Results;
use crate::experiments::ExperimentResults;
use crate::sweep;
use html::Html;

/// The policy forbids whatever the page does not need: it needs its style. A download is no request.
const HEAD: &str = r#"<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"#;

/// A page of the results of a comparison.
///
/// ```
/// use uringfs_lab::compare::Results;
/// use uringfs_lab::page;
///
/// # let results = Results { sides: [String::new(), "bs=8k".into()], jobs: vec![], pairs: 0, effect: 0.05, seed: None,
/// #     seconds: 0.0, machine: None, files_made: vec![], notes: vec!["<b>".into()], incomplete: false };
/// let source = page::Source { command: "uringfs bench compare job.fio", document: "{}" };
/// let page = page::html(&results, source);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("&lt;b&gt;"));
/// ```
pub fn html(results: &Results, source: Source<'_>) -> String {
    whole(&sections::title(results), |html| sections::body(html, results, source))
}

/// A page of the results of a sweep.
pub fn sweep_html(results: &sweep::Results, source: Source<'_>) -> String {
    whole(&sweep_sections::title(results), |html| sweep_sections::body(html, results, source))
}

/// A page of experiments: each with its verdicts, the published table beside the measured one, and all of its comparisons.
pub fn experiments_html(results: &[ExperimentResults], source: Source<'_>) -> String {
    whole(&experiments::title(results), |html| experiments::body(html, results, source))
}

/// A page with a title, whose body is written by `body`.
fn whole(title: &str, body: impl FnOnce(&mut Html)) -> String {
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n");
    html.element("html", &[("lang", &"en")], |html| {
        html.element("head", &[], |html| {
            html.raw(HEAD);
            html.text_element("title", &[], title);
            html.element("style", &[], |html| html.raw(include_str!("style.css")));
        });
        html.element("body", &[], body);
    });
    html.raw("\n");
    html.into_string()
}
