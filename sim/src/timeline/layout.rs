//! Where everything of a page goes, in units of which the page is [`WIDTH`] wide.

use crate::record::{Bar, Picture};

/// The page: 1240 units are 1240 pixels in a window of 1280.
pub(super) const WIDTH: usize = 1240;
/// Where the text of events ends and the sites begin.
const TEXT_WIDTH: usize = 440;
/// Letters of an event's words that fit into a line of [`TEXT_WIDTH`], number and mark left out.
const WORDS_LETTERS: usize = 54;
/// Letters of a note that do.
const NOTE_LETTERS: usize = 60;
/// Height of a line of text.
pub(super) const LINE: usize = 15;
/// Least height of a row: two lines of text in a bar.
const ROW_MIN: usize = 44;
/// From the top of a row to its event.
pub(super) const EVENT_AT: usize = 16;
/// Bars get narrower when there are many; below this their states are not written into them.
pub(super) const BAR_WRITTEN_MIN: usize = 64;
const BAR_MAX: usize = 82;
/// Room below the last row, for what is still on its way.
const FOOT: usize = 46;
/// Least room for messages between two sites.
const BETWEEN_MIN: usize = 190;
/// Highest piece of the page that is not broken between two printed pages, of which each has room
/// for two.
const PIECE_MAX: usize = 400;

/// A row's text and place.
pub(super) struct Placed {
    pub(super) top: usize,
    pub(super) bottom: usize,
    pub(super) words: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) broken: Vec<String>,
}

impl Placed {
    /// Where its event is.
    pub(super) fn event(&self) -> usize {
        self.top + EVENT_AT
    }
}

/// The geometry of a page.
pub(super) struct Layout {
    pub(super) rows: Vec<Placed>,
    /// The line of each site.
    pub(super) sites: Vec<usize>,
    /// Left edge of each bar.
    pub(super) bars: Vec<usize>,
    pub(super) bar_width: usize,
    pub(super) height: usize,
}

impl Layout {
    pub(super) fn of(picture: &Picture) -> Self {
        let rows = place_rows(picture);
        let height = rows.last().map_or(ROW_MIN, |row| row.bottom) + FOOT;
        let (columns, widths) = columns(picture);
        let total: usize = widths.iter().sum::<usize>().max(1);
        let room = WIDTH - TEXT_WIDTH;
        let between = BETWEEN_MIN * picture.sites.len().saturating_sub(1).max(1);
        let bar_width = (room.saturating_sub(between) / total).clamp(8, BAR_MAX);
        let bars_width = total * bar_width;
        let gaps = picture.sites.len().saturating_sub(1).max(1);
        let gap = room.saturating_sub(bars_width + 20) / gaps;
        let (mut x, mut sites, mut bars) = (TEXT_WIDTH + 10, Vec::new(), Vec::new());
        let mut left_of = Vec::new();
        let last = picture.sites.len().saturating_sub(1);
        for (site, count) in widths.iter().enumerate() {
            // The bars of the last of several sites are to its right, away from its messages.
            let right = site == last && last > 0;
            let own = count * bar_width;
            sites.push(if right { x } else { x + own });
            left_of.push(if right { x + 4 } else { x });
            x += own + gap;
        }
        for (bar, column) in picture.bars.iter().zip(columns) {
            bars.push(left_of[bar.site] + column * bar_width);
        }
        Self { rows, sites, bars, bar_width, height }
    }

    /// The height at which something in a row happens; past the last row, below it.
    pub(super) fn event(&self, row: usize) -> usize {
        self.rows.get(row).map_or(self.height - FOOT + 12, Placed::event)
    }

    /// Pieces of the page, each whole rows: from and to.
    pub(super) fn pieces(&self) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        let mut from = 0;
        for row in &self.rows {
            if row.bottom - from > PIECE_MAX && row.top > from {
                pieces.push((from, row.top));
                from = row.top;
            }
        }
        pieces.push((from, self.height));
        pieces
    }
}

fn place_rows(picture: &Picture) -> Vec<Placed> {
    let mut top = 0;
    let mut rows = Vec::new();
    for (number, row) in picture.rows.iter().enumerate() {
        let words = wrapped(&row.words, WORDS_LETTERS);
        let notes: Vec<String> =
            row.notes.iter().flat_map(|note| wrapped(note, NOTE_LETTERS)).collect();
        let broken = match &picture.violation {
            Some(violation) if picture.broken == Some(number) => {
                let words = format!("broken: {:?}: {}", violation.oracle, violation.detail);
                wrapped(&words, NOTE_LETTERS - 3)
            }
            _ => Vec::new(),
        };
        let lines = words.len() + notes.len() + broken.len();
        let bottom = top + (lines * LINE + 14).max(ROW_MIN);
        rows.push(Placed { top, bottom, words, notes, broken });
        top = bottom;
    }
    rows
}

/// The column of every bar within its site, and how many columns each site has.
fn columns(picture: &Picture) -> (Vec<usize>, Vec<usize>) {
    let mut taken: Vec<Vec<usize>> = vec![Vec::new(); picture.sites.len()];
    let mut columns = Vec::new();
    for Bar { site, states, ended, .. } in &picture.bars {
        let began = states.first().map_or(0, |(_, row)| *row);
        let free = taken[*site].iter().position(|until| *until < began);
        let column = free.unwrap_or(taken[*site].len());
        match taken[*site].get_mut(column) {
            Some(until) => *until = *ended,
            None => taken[*site].push(*ended),
        }
        columns.push(column);
    }
    (columns, taken.iter().map(Vec::len).collect())
}

/// Lines of at most `letters`, broken between words where that can be.
pub(super) fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("one line at least");
            let used = line.chars().count();
            let space = usize::from(used > 0);
            if used + space + word.len() <= letters {
                line.extend((used > 0).then_some(' '));
                line.extend(&word);
                break;
            }
            if used > 0 {
                lines.push(String::new());
            } else {
                line.extend(word.drain(..letters));
                lines.push(String::new());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn text_is_broken_between_words_and_long_words_are_cut() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
