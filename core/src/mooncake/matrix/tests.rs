use super::*;
use alloc::{format, vec};

const TEXT: &str = r#"{"cpu:0":[["a","b"],["c"]],"cpu:1":[["c"],[]]}"#;

fn matrix() -> PriorityMatrix {
    PriorityMatrix::parse(TEXT).unwrap()
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A text with locations of one NIC each.
fn located(count: usize) -> String {
    let rows: Vec<_> = (0..count).map(|at| format!(r#""cpu:{at}":[["a"],[]]"#)).collect();
    format!("{{{}}}", rows.join(","))
}

/// A text with one location of so many NICs.
fn listed(count: usize) -> String {
    let names: Vec<_> = (0..count).map(|at| format!(r#""n{at}""#)).collect();
    format!(r#"{{"cpu:0":[[{}],[]]}}"#, names.join(","))
}

/// A text is read, and written as it was.
#[test]
fn matrix_survives_its_text() {
    let matrix = matrix();
    assert_eq!(matrix.to_json(), TEXT);
    let rows: Vec<_> = matrix.locations().map(|(at, nics)| (at, nics.len())).collect();
    assert_eq!(rows, [("cpu:0", 3), ("cpu:1", 1)]);
    assert_eq!([matrix.nics("cpu:1").is_empty(), Nics::default().is_empty()], [false, true]);
}

/// Bytes, locations and NICs of a text are bounded, and each limit may be reached.
#[test]
fn text_is_bounded() {
    let padded = |bytes| format!("{TEXT}{}", " ".repeat(bytes - TEXT.len()));
    assert_eq!(PriorityMatrix::parse(&padded(MATRIX_BYTES_MAX)), Ok(matrix()));
    let past = MATRIX_BYTES_MAX + 1;
    assert_eq!(PriorityMatrix::parse(&padded(past)), Err(MatrixError::TooLong(past)));
    assert!(PriorityMatrix::parse(&located(MATRIX_LOCATIONS_MAX)).is_ok());
    let past = MATRIX_LOCATIONS_MAX + 1;
    assert_eq!(PriorityMatrix::parse(&located(past)), Err(MatrixError::Locations(past)));
    let most = PriorityMatrix::parse(&listed(MATRIX_NICS_MAX)).unwrap();
    assert_eq!(most.nics("cpu:0").len(), MATRIX_NICS_MAX);
    assert!(PriorityMatrix::parse(&listed(MATRIX_NICS_MAX + 1)).is_err());
}

/// The value of a location is a pair of lists of names, each of which is in it once.
#[test]
fn broken_location_is_refused_with_its_problem() {
    for (value, problem) in [
        ("7", "its value is not a list"),
        (r#"[["a"]]"#, "its value is not a pair of lists"),
        (r#"[["a"], "b"]"#, "one of its two values is not a list"),
        (r#"[[""], []]"#, "a NIC's name is not a string, or is empty"),
        (r#"[[1], []]"#, "a NIC's name is not a string, or is empty"),
        (r#"[["a"], ["a"]]"#, "a NIC is listed twice"),
    ] {
        let error = PriorityMatrix::parse(&format!(r#"{{"cpu:0": {value}}}"#)).unwrap_err();
        assert_eq!(error, MatrixError::Location { location: "cpu:0".into(), problem });
    }
    for text in ["[]", "{"] {
        let error = PriorityMatrix::parse(text).unwrap_err();
        assert!(matches!(error, MatrixError::NotAnObject(_)), "{text}: {error}");
    }
}

/// A NIC is as near as the list of a location says that it is in. Without a list every known NIC is near.
#[test]
fn nearness_is_that_of_the_list() {
    use Nearness::{Available, Preferred, Unlisted};
    let mut matrix = matrix();
    let of = |matrix: &PriorityMatrix, location| {
        ["a", "c", "d"].map(|nic| matrix.nearness(location, nic))
    };
    assert_eq!(of(&matrix, "cpu:0"), [Preferred, Available, Unlisted]);
    assert_eq!(of(&matrix, "cpu:9"), [Preferred, Preferred, Unlisted]);
    assert_eq!(matrix.nics("cpu:9"), Nics { preferred: list(&["a", "b", "c"]), available: vec![] });
    let any = Nics { preferred: list(&["c"]), available: list(&["d"]) };
    matrix.insert(WILDCARD, any.clone());
    assert_eq!(of(&matrix, "cpu:9"), [Unlisted, Preferred, Available]);
    assert_eq!(matrix.nics("cpu:9"), any);
}

/// A matrix of some NICs has no others, and no location without any.
#[test]
fn matrix_is_restricted_to_some_nics() {
    let matrix = matrix();
    assert_eq!(matrix.of_nics(&list(&["b", "x"])).to_json(), r#"{"cpu:0":[["b"],[]]}"#);
    assert_eq!(
        matrix.of_nics(&list(&["c"])).to_json(),
        r#"{"cpu:0":[[],["c"]],"cpu:1":[["c"],[]]}"#
    );
}
