use super::*;

fn first(text: &str) -> Option<(&'static str, Side, u64)> {
    explain(text).first.map(|first| (first.id.as_str(), first.side, first.line))
}

#[test]
fn the_first_error_is_found_in_a_storm_of_flushes() {
    let mut log = String::from("I1121 16:00:00.000001 7 a.cpp:1] started\n");
    let line = |status: &str, peer: u32| {
        format!(
            "E1121 16:00:01.000001 7 worker_pool.cpp:3] Worker: Process failed for slice (peer_nic: 10.0.0.{peer}:12001@mlx5_0): {status}\n"
        )
    };
    for _ in 0..500 {
        log += &line("Work Request Flushed Error", 2);
    }
    log += &line("transport retry counter exceeded", 3);
    for _ in 0..500 {
        log += &line("Work Request Flushed Error", 3);
    }
    let explained = explain(&log);
    let first = explained.first.unwrap();
    assert_eq!((first.id, first.line, explained.flushed), (ids::WC_RETRY, 502, 1000));
    let connections: Vec<_> =
        explained.connections.iter().map(|c| (c.first, c.line, c.flushed)).collect();
    assert_eq!(connections, [(None, 2, 500), (Some(ids::WC_RETRY), 502, 500)]);
}

#[test]
fn cause_precedes_flush_and_dispatcher() {
    assert_eq!(first("slice: work request flushed error").unwrap().0, "WC-FLUSH-ONLY");
    let log = "Failed to exchange handshake description\nconnect: Connection refused";
    assert_eq!(first(log), Some(("NET-REFUSED", Side::Remote, 2)));
    assert_eq!(first("Failed to exchange handshake description").unwrap().0, "HS-FAILED");
}

#[test]
fn what_a_peer_reports_is_the_peers() {
    let text = "Handshake request rejected by peer endpoint: Failed to modify QP to RTR, check mtu, gid: Invalid argument [22]";
    assert_eq!(first(text), Some(("QP-RTR", Side::Remote, 1)));
    assert_eq!(first(&text[44..]).unwrap().1, Side::Both);
    assert_eq!(first("opening failed (our side): connection refused").unwrap().1, Side::Local);
}

#[test]
fn a_message_is_recognised_wherever_its_line_was_broken() {
    let text = "E1121 16:00:00.1 7 x.cpp:1] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Connection timed out [110]";
    for at in (1..text.len()).filter(|at| *at > 40) {
        let broken = format!("{}\n{}", &text[..at], &text[at..]);
        assert_eq!(first(&broken).unwrap().0, "QP-RTR-TIMEOUT", "{broken}");
    }
    let separate = "E1121 16:00:00.1 7 x.cpp:1] Failed to modify QP to RTR\nE1121 16:00:00.2 7 x.cpp:2] Connection timed out";
    assert_eq!(first(separate).unwrap().0, "QP-RTR");
}

#[test]
fn the_kind_of_device_says_more() {
    let text = "using device erdma_0\nFailed to modify QP to RTS: Invalid argument [22]";
    let explained = explain(text);
    assert_eq!(explained.first.unwrap().id, ids::ERDMA_STANDARD_MODE);
    assert_eq!(explained.refined_from, Some(ids::QP_RTS));
    assert_eq!(
        first("mlx5_0: Failed to modify QP to RTS: Invalid argument [22]").unwrap().0,
        "QP-RTS"
    );
}

#[test]
fn our_own_errors_name_their_page() {
    let text = "error: [NET-REFUSED] connecting failed for 10.0.0.1:7 (the peer's side): words of another kind";
    assert_eq!(first(text), Some(("NET-REFUSED", Side::Remote, 1)));
    assert_eq!(first("[error] [not-an-id] fine"), None);
}

#[test]
fn unknown_text_is_called_unknown_and_the_nearest_is_suggested() {
    let explained = explain("Faild to modfy QP to RTR");
    assert_eq!(explained.first, None);
    assert_eq!(explained.nearest[0].id, ids::QP_RTR);
    assert!(explain("the weather is fine today").nearest.is_empty());
    assert_eq!(explain("").first, None);
}

#[test]
fn a_line_longer_than_the_limit_is_looked_at_in_pieces() {
    let text = format!("{}Connection refused", "x".repeat(LINE_BYTES_MAX - 5));
    assert_eq!(first(&text).unwrap().0, "NET-REFUSED");
    let exact =
        format!("{}Connection refused", "x".repeat(LINE_BYTES_MAX - "Connection refused".len()));
    assert_eq!(explain(&exact).lines, 1);
    assert_eq!(first(&exact).unwrap().0, "NET-REFUSED");
}

#[test]
fn bytes_cut_anywhere_say_the_same() {
    let text =
        "连接被拒绝\r\n\u{1b}[31mConnection refused\u{1b}[0m\nFailed to create QP: 无法分配内存\n";
    let whole = explain(text);
    for size in 1..7 {
        let mut explainer = Explainer::default();
        text.as_bytes().chunks(size).for_each(|bytes| explainer.feed(bytes));
        assert_eq!(explainer.finish(), whole);
    }
    assert_eq!(whole.lines, 3);
}

#[test]
fn what_comes_after_the_limit_is_left_out_and_that_is_said() {
    let mut explainer = Explainer { bytes: INPUT_BYTES_MAX - 4, ..Explainer::default() };
    explainer.feed(b"abcd");
    assert!(!explainer.truncated && !explainer.wants_more());
    explainer.feed(b"Connection refused");
    let explained = explainer.finish();
    assert!(explained.truncated && explained.first.is_none());
}

#[test]
fn connections_past_the_limit_are_counted_and_not_listed() {
    let line =
        |n: usize| format!("12:00:00 slice failed, qp_num={n}: transport retry counter exceeded\n");
    let log: String = (0..=CONNECTIONS_MAX).map(line).collect();
    let explained = explain(&log);
    assert_eq!(explained.connections.len(), CONNECTIONS_MAX);
    assert_eq!(explained.seen[0].count, CONNECTIONS_MAX as u64 + 1);
}
