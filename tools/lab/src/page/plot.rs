//! Plots as SVG inside of a page: series of points with their spreads, above places such as rounds, depths or percentiles.
//! Sides differ in colour, in mark and in dash, so that no eye needs the colours.

use super::html::{Attributes, Html};
use super::scale::{Scale, ScaleKind, is_drawable};
use crate::compare::{Unit, number};
use crate::stats::RatioInterval;

/// The size of a plot in its own units, one of which is at most a pixel: on a phone the text is still legible.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 260.0;
/// The margins, with the ticks' labels and, at the top, the legend.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;

/// The side that a series belongs to, which gives it its look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    Again,
    B,
    Control,
    /// A value of a swept key, by its number below [`SWEPT_SIDES`].
    Swept(usize),
}

/// How many values of a swept key have looks of their own.
pub(super) const SWEPT_SIDES: usize = 6;

/// A value at a place.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// The place on the horizontal axis; places are 1 apart.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The lower end of its spread; `y` without one.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The words that a pointer above it shows.
    pub words: String,
}

/// Points of one side.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub name: String,
    pub side: Side,
    pub points: Vec<Point>,
}

/// Whether the points of a series are joined by a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    Joined,
    Apart,
}

/// The values of the vertical axis.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// Those of a figure.
    Figure(Unit),
    /// Ratios, whose estimate and interval are drawn behind the points.
    Ratios(RatioInterval),
}

/// A plot.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    pub title: String,
    /// How to read it, in whole sentences.
    pub explanation: &'static str,
    /// The name of the horizontal axis.
    pub x_name: String,
    /// The labels of places.
    pub x_labels: Vec<(f64, String)>,
    pub values: Values,
    pub marks: Marks,
    pub series: Vec<Series>,
}

/// The places of a plot in its picture.
struct Frame {
    scale: Scale,
    x_low: f64,
    x_high: f64,
}

impl Side {
    fn class(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::Again => "again",
            Self::B => "b",
            Self::Control => "control",
            Self::Swept(number) => {
                const CLASSES: [&str; SWEPT_SIDES] = ["s0", "s1", "s2", "s3", "s4", "s5"];
                CLASSES[number]
            }
        }
    }
}

impl Series {
    /// The points that have a place on the axis.
    fn drawable(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| is_drawable(point.y))
    }
}

impl Frame {
    fn new(plot: &Plot) -> Option<Self> {
        let points = || plot.series.iter().flat_map(Series::drawable);
        let ratios = match plot.values {
            Values::Ratios(RatioInterval { ratio, low, high }) => vec![1.0, ratio, low, high],
            Values::Figure(_) => Vec::new(),
        };
        let ends = points().flat_map(|point| [point.y, point.low, point.high]);
        let scale = Scale::new(ends.chain(ratios))?;
        let labelled = plot.x_labels.iter().map(|(x, _)| *x);
        let places: Vec<f64> = points().map(|point| point.x).chain(labelled).collect();
        let x_low = places.iter().copied().fold(f64::INFINITY, f64::min) - 0.5;
        let x_high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max) + 0.5;
        points().next().map(|_| Self { scale, x_low, x_high })
    }

    fn x(&self, x: f64) -> f64 {
        LEFT + (x - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.scale.place(y) * (HEIGHT - TOP - BOTTOM)
    }
}

impl Plot {
    /// Writes the plot, or nothing if it has no value.
    pub fn write(&self, html: &mut Html) {
        let Some(frame) = Frame::new(self) else { return };
        html.element("figure", &[], |html| {
            html.element("figcaption", &[], |html| {
                html.text_element("strong", &[], &self.title);
                html.text(format_args!(". {}{}", self.explanation, self.about_axis(&frame)));
            });
            let size = format!("0 0 {WIDTH} {HEIGHT}");
            html.element("svg", &[("viewBox", &size), ("role", &"img")], |html| {
                html.text_element("title", &[], &self.title);
                html.text_element("desc", &[], self.description());
                self.write_axes(html, &frame);
                self.write_ratio(html, &frame);
                self.series.iter().for_each(|series| self.write_series(html, &frame, series));
                self.write_legend(html);
            });
        });
    }

    fn about_axis(&self, frame: &Frame) -> &'static str {
        match (frame.scale.kind(), self.values) {
            (ScaleKind::Logarithmic, _) => " The axis is logarithmic.",
            (ScaleKind::Linear, Values::Figure(_)) if !frame.scale.has_zero() => {
                " The axis does not begin at 0."
            }
            (ScaleKind::Linear, _) => "",
        }
    }

    fn unit(&self) -> Option<Unit> {
        match self.values {
            Values::Figure(unit) => Some(unit),
            Values::Ratios(_) => None,
        }
    }

    /// A description of the picture, in words.
    fn description(&self) -> String {
        let words = |value| self.unit().map_or_else(|| number(value), |unit| unit.amount(value));
        let series = self.series.iter().filter_map(|series| {
            let (least, most) =
                series.drawable().fold(None, |span: Option<(f64, f64)>, point| {
                    let (least, most) = span.unwrap_or((point.y, point.y));
                    Some((least.min(point.y), most.max(point.y)))
                })?;
            let count = series.drawable().count();
            Some(format!("{}: {count} from {} to {}.", series.name, words(least), words(most)))
        });
        series.collect::<Vec<_>>().join(" ")
    }

    fn write_axes(&self, html: &mut Html, frame: &Frame) {
        html.element("g", &[("class", &"axes")], |html| {
            let (left, right) = (px(LEFT), px(WIDTH - RIGHT));
            for (tick, label) in frame.scale.ticks(self.unit()) {
                let y = px(frame.y(tick));
                html.shape("line", &[("x1", &left), ("x2", &right), ("y1", &y), ("y2", &y)]);
                let y = px(frame.y(tick) + 4.0);
                let x = px(LEFT - 6.0);
                html.text_element("text", &[("x", &x), ("y", &y), ("text-anchor", &"end")], label);
            }
            let middle = (LEFT + WIDTH - RIGHT) / 2.0;
            let labels = self.x_labels.iter().map(|(x, label)| (frame.x(*x), 18.0, label.as_str()));
            for (x, below, label) in labels.chain([(middle, 36.0, &*self.x_name)]) {
                let (x, y) = (px(x), px(HEIGHT - BOTTOM + below));
                let place: Attributes<'_> = &[("x", &x), ("y", &y), ("text-anchor", &"middle")];
                html.text_element("text", place, label);
            }
        });
    }

    /// The interval as a band, the estimate and 1 as lines.
    fn write_ratio(&self, html: &mut Html, frame: &Frame) {
        let Values::Ratios(interval) = self.values else { return };
        let (left, right) = (px(LEFT), px(WIDTH - RIGHT));
        if has_band(&interval) {
            let (top, bottom) = (frame.y(interval.high), frame.y(interval.low));
            let (y, height) = (px(top), px(bottom - top));
            let width = px(WIDTH - LEFT - RIGHT);
            let place: Attributes<'_> = &[
                ("class", &"band"),
                ("x", &left),
                ("y", &y),
                ("width", &width),
                ("height", &height),
            ];
            html.shape("rect", place);
        }
        for (class, value) in [("estimate", interval.ratio), ("equal", 1.0)] {
            if is_drawable(value) {
                let y = px(frame.y(value));
                let ends: Attributes<'_> =
                    &[("class", &class), ("x1", &left), ("x2", &right), ("y1", &y), ("y2", &y)];
                html.shape("line", ends);
            }
        }
    }

    fn write_series(&self, html: &mut Html, frame: &Frame, series: &Series) {
        const MANY: usize = 60;
        let radius = if series.points.len() > MANY { 2.0 } else { 4.0 };
        html.element("g", &[("class", &series.side.class())], |html| {
            if self.marks == Marks::Joined {
                for part in series.points.split(|point| !is_drawable(point.y)) {
                    let place = |point: &Point| {
                        format!("{},{}", px(frame.x(point.x)), px(frame.y(point.y)))
                    };
                    let places: Vec<String> = part.iter().map(place).collect();
                    if places.len() > 1 {
                        html.shape("polyline", &[("points", &places.join(" "))]);
                    }
                }
            }
            for point in series.drawable() {
                let x = px(frame.x(point.x));
                if is_drawable(point.low) && is_drawable(point.high) && point.low < point.high {
                    let (low, high) = (px(frame.y(point.low)), px(frame.y(point.high)));
                    html.shape("line", &[("x1", &x), ("x2", &x), ("y1", &low), ("y2", &high)]);
                }
                let at = (frame.x(point.x), frame.y(point.y));
                write_mark(html, series.side, at, radius, &point.words);
            }
        });
    }

    fn write_legend(&self, html: &mut Html) {
        let drawn = self.series.iter().filter(|series| series.drawable().next().is_some());
        let mut place = LEGEND;
        for series in drawn {
            let mark = |html: &mut Html, at| write_mark(html, series.side, at, 4.0, "");
            place = write_legend_entry(html, place, series.side.class(), &series.name, mark);
        }
        if let Values::Ratios(interval) = self.values
            && has_band(&interval)
        {
            write_legend_entry(html, place, "legend", "95 % interval", |html, (x, y)| {
                let (x, y, size) = (px(x - 6.0), px(y - 6.0), px(12.0));
                let place: Attributes<'_> = &[
                    ("class", &"band"),
                    ("x", &x),
                    ("y", &y),
                    ("width", &size),
                    ("height", &size),
                ];
                html.shape("rect", place);
            });
        }
    }
}

/// The first place of the legend.
const LEGEND: (f64, f64) = (8.0, 12.0);

/// Writes the mark and the name of a series at a place, or in the next row if it does not fit there. Returns where the next one begins.
///
/// A name is shortened so that all series of a sweep have room in two rows.
fn write_legend_entry(
    html: &mut Html,
    (mut x, mut y): (f64, f64),
    class: &'static str,
    name: &str,
    mark: impl FnOnce(&mut Html, (f64, f64)),
) -> (f64, f64) {
    // A letter is narrower on average.
    const LETTER: f64 = 7.2;
    const ROW: f64 = 16.0;
    const MAX_LETTERS: usize = 15;
    let name = match name.chars().count() {
        letters if letters <= MAX_LETTERS => name.to_owned(),
        _ => name.chars().take(MAX_LETTERS - 1).chain(['…']).collect(),
    };
    let width = 17.0 + LETTER * name.chars().count() as f64;
    if x + width > WIDTH {
        (x, y) = (LEGEND.0, y + ROW);
    }
    html.element("g", &[("class", &class)], |html| {
        mark(html, (x + 6.0, y));
        html.text_element("text", &[("x", &px(x + 17.0)), ("y", &px(y + 4.5))], name);
    });
    (x + width + 12.0, y)
}

fn has_band(interval: &RatioInterval) -> bool {
    is_drawable(interval.low) && is_drawable(interval.high) && interval.low <= interval.high
}

/// A mark with the look of its side.
fn write_mark(html: &mut Html, side: Side, (x, y): (f64, f64), radius: f64, words: &str) {
    let title = |html: &mut Html| {
        if !words.is_empty() {
            html.text_element("title", &[], words);
        }
    };
    let size = px(2.0 * radius);
    match side {
        Side::A | Side::Again | Side::Swept(0 | 4) => {
            let (x, y) = (px(x), px(y));
            html.element("circle", &[("cx", &x), ("cy", &y), ("r", &px(radius))], title);
        }
        Side::B | Side::Swept(1) => {
            let (x, y) = (px(x - radius), px(y - radius));
            html.element(
                "rect",
                &[("x", &x), ("y", &y), ("width", &size), ("height", &size)],
                title,
            );
        }
        Side::Control | Side::Swept(_) => {
            let [left, right] = [x - radius, x + radius].map(px);
            let [top, bottom] = [y - radius, y + radius].map(px);
            let (x, y) = (px(x), px(y));
            let path = match side {
                Side::Swept(3) => format!("M{x} {top}L{right} {y}L{x} {bottom}L{left} {y}Z"),
                Side::Swept(5) => format!("M{x} {bottom}L{right} {top}L{left} {top}Z"),
                _ => format!("M{x} {top}L{right} {bottom}L{left} {bottom}Z"),
            };
            html.element("path", &[("d", &path)], title);
        }
    }
}

/// A coordinate.
fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: Values, ys: &[f64]) -> Plot {
        let point = |(index, y): (usize, &f64)| {
            let (x, words) = (index as f64, format!("point {index}"));
            Point { x, y: *y, low: y * 0.9, high: y * 1.1, words }
        };
        Plot {
            title: "rate".into(),
            explanation: "One mark a depth.",
            x_name: "depth".into(),
            x_labels: vec![(0.0, "1".into()), (2.0, "4".into())],
            values,
            marks: Marks::Joined,
            series: vec![Series {
                name: "b".into(),
                side: Side::B,
                points: ys.iter().enumerate().map(point).collect(),
            }],
        }
    }

    fn written(plot: &Plot) -> String {
        let mut html = Html::default();
        plot.write(&mut html);
        html.into_string()
    }

    #[test]
    fn each_point_has_a_mark_a_spread_and_its_words() {
        let text = written(&plot(Values::Figure(Unit::PerSecond), &[1e5, 1.5e5, 2e5]));
        assert_eq!(text.matches("<title>point ").count(), 3, "{text}");
        // The square of each point, and that of the legend.
        assert_eq!(text.matches("<rect x=").count(), 4, "{text}");
        assert_eq!(text.matches("<polyline").count(), 1, "{text}");
        assert!(text.contains("<desc>b: 3 from 100 k/s to 200 k/s.</desc>"), "{text}");
        assert!(text.contains(">depth</text>") && text.contains(">4</text>"), "{text}");
    }

    #[test]
    fn missing_values_leave_a_gap_and_no_values_leave_nothing() {
        let text = written(&plot(
            Values::Figure(Unit::Nanoseconds),
            &[1.0, 2.0, f64::NAN, 3.0, f64::INFINITY, 4.0, 5.0],
        ));
        assert_eq!(text.matches("<title>point ").count(), 5, "{text}");
        assert_eq!(text.matches("<polyline").count(), 2, "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let interval = RatioInterval { ratio: 1.0, low: 0.9, high: 1.1 };
        for values in [Values::Figure(Unit::PerIo), Values::Ratios(interval)] {
            assert_eq!(written(&plot(values, &[f64::NAN; 3])), "");
            assert_eq!(written(&plot(values, &[])), "");
        }
    }

    #[test]
    fn ratios_have_a_line_at_1_and_a_band_if_there_is_an_interval() {
        let band = |low, high| {
            let text =
                written(&plot(Values::Ratios(RatioInterval { ratio: 1.05, low, high }), &[1.1]));
            assert_eq!(text.matches("class=\"equal\"").count(), 1, "{text}");
            (text.matches("<rect class=\"band\"").count(), text.contains("95 % interval"))
        };
        assert_eq!(band(1.02, 1.08), (2, true));
        assert_eq!(band(f64::NAN, f64::NAN), (0, false));
    }

    #[test]
    fn every_value_of_a_swept_key_has_its_look_and_its_place_in_the_legend() {
        let mut plot = plot(Values::Figure(Unit::PerSecond), &[1e5, 2e5]);
        let series = |number| Series {
            name: format!("a value with a long name {number}"),
            side: Side::Swept(number),
            ..plot.series[0].clone()
        };
        plot.series = (0..SWEPT_SIDES).map(series).collect();
        let text = written(&plot);
        for number in 0..SWEPT_SIDES {
            assert_eq!(text.matches(&format!("class=\"s{number}\"")).count(), 2, "{text}");
        }
        assert_eq!(text.matches("a value with a…").count(), SWEPT_SIDES, "{text}");
        // Two rows above the axes.
        let places = text.split("<text x=\"").skip(1).filter(|part| part.contains(">a value"));
        let places: Vec<(f64, f64)> = places
            .map(|part| {
                let (x, rest) = part.split_once("\" y=\"").unwrap();
                (x.parse().unwrap(), rest.split_once('"').unwrap().0.parse().unwrap())
            })
            .collect();
        assert!(places.iter().all(|(x, y)| *x + 110.0 < WIDTH && *y < TOP), "{places:?}");
        let mut sorted = places.clone();
        sorted.sort_by(|a, b| (a.1, a.0).partial_cmp(&(b.1, b.0)).unwrap());
        assert_eq!(sorted, places, "one after the other");
    }

    #[test]
    fn an_axis_that_deceives_says_so() {
        let figure = Values::Figure(Unit::PerSecond);
        let near = written(&plot(figure, &[1e5, 1.001e5]));
        assert!(near.contains("The axis does not begin at 0."), "{near}");
        let far = written(&plot(figure, &[1.0, 1e5]));
        assert!(far.contains("The axis is logarithmic."), "{far}");
    }
}
