use super::*;
use alloc::format;
use alloc::string::ToString;

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn grants(all: &[(Access, &str)]) -> Grants {
    let mut grants = Grants::default();
    for (access, peers) in all {
        grants.add(Grant::new(*access, peers).unwrap()).unwrap();
    }
    grants
}

/// A peer has the permissions of every pattern that covers its name, and a nameless one those of
/// `*` alone.
#[test]
fn access_is_the_union_of_the_covering_grants() {
    let grants = grants(&[(Access::READ, "decode-*"), (Access::WRITE, "*-1")]);
    let of = |text: &str| grants.access_of(Requester::Peer(&name(text)));
    assert_eq!(of("decode-2"), Access::READ);
    assert_eq!(of("trainer-1"), Access::WRITE);
    assert_eq!(of("decode-1"), Access::READ_WRITE);
    assert!(of("other").is_none() && !grants.is_for_everybody());
    assert!(grants.access_of(Requester::Anybody).is_none());
    assert_eq!(grants.access_of(Requester::Own), Access::READ_WRITE);
    let error = grants.check_unproven().unwrap_err();
    assert!(matches!(&error, GrantError::Unproven { pattern } if pattern == "*-1"), "{error}");
    let everybody = Grants::everybody(Access::READ);
    assert_eq!(everybody.access_of_everybody(), Access::READ);
    assert!(Access::READ.allows(Direction::Read) && !Access::READ.allows(Direction::Write));
    assert_eq!(everybody.access_of(Requester::Anybody), Access::READ);
    assert_eq!((everybody.check_unproven(), everybody.is_for_everybody()), (Ok(()), true));
    assert!(Grants::everybody(Access::default()).iter().next().is_none());
}

/// A memo answers for one key and one state of the grants.
#[test]
fn memo_holds_until_the_grants_change() {
    let (some, none) = (Grants::from(Access::READ), Grants::default());
    let mut memo = AccessMemo::default();
    let mut access = |at, grants| memo.access(at, grants, Requester::Anybody);
    assert_eq!(access((1, 7), &some), Access::READ);
    assert_eq!(access((1, 7), &none), Access::READ, "remembered");
    assert!(access((1, 8), &none).is_none(), "another key");
    assert_eq!(access((1, 7), &some), Access::READ, "one decision is remembered");
    assert!(access((2, 7), &none).is_none(), "a change");
}

/// A node is an administrator of itself, and its peers by their proven names.
#[test]
fn administrators_are_proven_peers() {
    let (admins, nobody) =
        (Administrators::new(["ops-*"]).unwrap(), Administrators::new([]).unwrap());
    assert_eq!([admins.is_empty(), nobody.is_empty()], [false, true]);
    for (name, is_one) in [("ops-1", true), ("decode-1", false)] {
        let name = NodeName::new(name).unwrap();
        assert_eq!(admins.admits(Requester::Peer(&name)), is_one, "{name}");
        assert!(!nobody.admits(Requester::Peer(&name)));
    }
    assert!(admins.admits(Requester::Own) && nobody.admits(Requester::Own));
    assert!(!admins.admits(Requester::Anybody));
    assert!(matches!(Administrators::new([""]), Err(GrantError::Pattern { .. })));
}

/// An overlapping grant allows a part of the same to some of the same peers.
#[test]
fn overlapping_grants_share_peers_and_access() {
    let grants = grants(&[(Access::READ, "decode-*")]);
    let overlaps = |access, peers| {
        let grant = Grant::new(access, peers).unwrap();
        grants.overlapping(&grant).map(|it| it.to_string())
    };
    let held = Some("read for decode-*".to_string());
    assert_eq!(overlaps(Access::READ, "decode-1"), held, "a part of the peers");
    assert_eq!(overlaps(Access::READ_WRITE, "*"), held, "more than the peers");
    assert_eq!(overlaps(Access::WRITE, "decode-1"), None, "another access");
    assert_eq!(overlaps(Access::READ, "trainer-*"), None, "other peers");
}

/// A revocation takes what it names, from its own pattern.
#[test]
fn revoked_access_is_that_of_one_pattern() {
    let mut grants = grants(&[(Access::READ_WRITE, "a"), (Access::READ, "*")]);
    assert_eq!(grants.access_of(Requester::Anybody), Access::READ);
    grants.revoke(&Grant::write("a").unwrap());
    assert_eq!(grants.access_of(Requester::Peer(&name("a"))), Access::READ);
    grants.revoke(&Grant::write("unknown").unwrap());
    grants.revoke(&Grant::read_write("a").unwrap());
    let left: Vec<_> = grants.iter().map(|grant| grant.to_string()).collect();
    assert_eq!(left, ["read for *"]);
    grants.revoke(&Grant::read("*").unwrap());
    assert!(grants.access_of(Requester::Anybody).is_none());
}

/// A key whose names are those of administrators and of others leaves the choice to its holders; one
/// for administrators alone or for none of them does not.
#[test]
fn keys_that_leave_the_choice_are_found() {
    let admins = Administrators::new(["admin-1", "ops-*"]).unwrap();
    let key = |names: &[&str]| {
        let names = names.iter().map(|it| NamePattern::new(it).unwrap()).collect();
        KeyRule::new("fleet", names).unwrap()
    };
    for names in [
        &[][..],
        &["*"],
        &["**"],
        &["*-1"],
        &["a*"],
        &["a*1"],
        &["admin-*"],
        &["admin-1*"],
        &["o*"],
        &["decode-*", "*s-7"],
        &["*min*"],
        &["x", "admin-1"],
        &["admin-1", "decode-*"],
        &["admin-1", "admin-2"],
    ] {
        assert!(admins.can_be_chosen_with(&key(names)), "{names:?}");
    }
    for names in
        [&["admin-1"][..], &["ops-*"], &["ops-a*"], &["admin-1", "ops-*"], &["decode-*"], &["a*2"]]
    {
        assert!(!admins.can_be_chosen_with(&key(names)), "{names:?}");
    }
    assert!(!Administrators::default().can_be_chosen_with(&key(&[])), "nobody is one");
}

/// Every mistake has its error, and the limit holds at its value.
#[test]
fn grants_are_checked_and_bounded() {
    assert_eq!(Grant::new(Access::default(), "a"), Err(GrantError::Nothing));
    for pattern in ["", "a@b", "a\n"] {
        let error = Grant::read(pattern).unwrap_err();
        assert_eq!(error, GrantError::Pattern { pattern: pattern.into() });
    }
    let mut grants = Grants::default();
    for at in 0..GRANTS_MAX {
        grants.add(Grant::read(&format!("n{at}")).unwrap()).unwrap();
    }
    assert_eq!(grants.add(Grant::read("one-more").unwrap()), Err(GrantError::Full));
    assert_eq!(grants.add(Grant::write("n0").unwrap()), Ok(()), "its pattern is known");
}

/// Peers with the same grants share a registration; it ends with the first of these grants, and
/// another's does not.
#[test]
fn key_of_a_group_ends_with_its_first_grant() {
    let mut grants = grants(&[(Access::READ, "*"), (Access::WRITE, "trainer-*")]);
    let mut groups = KeyGroups::default();
    let mut of = |grants: &Grants, text: &str| {
        let group = groups.group_of(grants, Requester::Peer(&name(text)), Instant(0));
        (group, groups.clone())
    };
    let (reader, _) = of(&grants, "decode-1");
    let KeyGroup::New { group: readers, access: Access::READ, .. } = reader else {
        panic!("{reader:?}")
    };
    assert_eq!(of(&grants, "decode-2").0, KeyGroup::Known(readers));
    let (writer, _) = of(&grants, "trainer-1");
    let KeyGroup::New { group: writers, access: Access::READ_WRITE, .. } = writer else {
        panic!("{writer:?}")
    };
    grants.add(Grant::write("decode-*").unwrap()).unwrap();
    let (_, mut known) = of(&grants, "decode-2");
    assert!(known.has(readers) && known.has(writers));
    assert_eq!(known.on_changed(&grants), [], "no group allows what is not granted");
    grants.revoke(&Grant::write("trainer-*").unwrap());
    assert_eq!(known.on_changed(&grants), [writers]);
    assert!(known.has(readers) && !known.has(writers));
    grants.revoke(&Grant::read("*").unwrap());
    assert!(known.on_changed(&grants).contains(&readers));
    assert!(!known.has(readers) && !known.has(writers));
    assert_eq!(known.group_of(&grants, Requester::Anybody, Instant(0)), KeyGroup::None);
}

/// A group past the limit has no registration, however often it asks, and none of the others loses
/// its own; one that failed, or that ends with its grants, makes room.
#[test]
fn groups_are_bounded() {
    let names: Vec<_> = (0..KEY_GROUPS_MAX + 3).map(|at| format!("n{at}")).collect();
    let all: Vec<_> = names.iter().map(|name| (Access::READ, &**name)).collect();
    let (mut grants, mut groups) = (grants(&all), KeyGroups::default());
    let ask = |groups: &mut KeyGroups, grants: &Grants, at: usize| {
        groups.group_of(grants, Requester::Peer(&name(&names[at])), Instant(0))
    };
    let new = |group: u64, evicted: Option<u64>| KeyGroup::New {
        group: KeyGroupId(group),
        access: Access::READ,
        trust: TrustGroup::default(),
        evicted: evicted.map(KeyGroupId),
    };
    let newcomer = name(&names[KEY_GROUPS_MAX]);
    let has_room = |groups: &KeyGroups| groups.has_room_for(&grants, Requester::Peer(&newcomer));
    for at in 0..KEY_GROUPS_MAX {
        assert!(has_room(&groups), "{at}");
        assert_eq!(ask(&mut groups, &grants, at), new(at as u64, None));
    }
    assert!(!has_room(&groups));
    for _ in 0..2 {
        assert_eq!(ask(&mut groups, &grants, KEY_GROUPS_MAX), KeyGroup::Full);
        for at in 0..KEY_GROUPS_MAX {
            let known = KeyGroup::Known(KeyGroupId(at as u64));
            assert_eq!(ask(&mut groups, &grants, at), known);
        }
    }
    groups.on_failed(KeyGroupId(2), Instant(0));
    let last = KEY_GROUPS_MAX as u64;
    assert_eq!(ask(&mut groups, &grants, KEY_GROUPS_MAX), new(last, Some(2)));
    assert_eq!(ask(&mut groups, &grants, KEY_GROUPS_MAX + 1), KeyGroup::Full);
    grants.revoke(&Grant::read("n7").unwrap());
    assert_eq!(groups.on_changed(&grants), [KeyGroupId(7)]);
    assert_eq!(ask(&mut groups, &grants, KEY_GROUPS_MAX + 1), new(last + 1, None));
}

/// A registration that failed is tried again after its pause, by the first request.
#[test]
fn failed_group_pauses() {
    let (grants, mut groups) = (Grants::everybody(Access::READ), KeyGroups::default());
    let of =
        |groups: &mut KeyGroups, now| groups.group_of(&grants, Requester::Anybody, Instant(now));
    let KeyGroup::New { group, .. } = of(&mut groups, 5) else { panic!("it is the first") };
    assert!(!groups.is_pausing(group, Instant(5)));
    groups.on_failed(group, Instant(5));
    let end = 5 + KEY_RETRY_INTERVAL.nanos();
    for now in [5, end - 1] {
        assert_eq!(of(&mut groups, now), KeyGroup::Failed(group));
        assert!(groups.is_pausing(group, Instant(now)));
    }
    assert!(!groups.is_pausing(group, Instant(end)));
    let (access, trust) = (Access::READ, TrustGroup::default());
    let again = KeyGroup::New { group, access, trust, evicted: None };
    assert_eq!(of(&mut groups, end), again);
    assert_eq!(of(&mut groups, end), KeyGroup::Known(group), "it is being made");
}

/// Peers of two trust groups with the same grants have a registration each, in the domain of their
/// group; a revocation of the grant ends both.
#[test]
fn trust_groups_share_no_key() {
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    let (mut grants, mut groups) = (grants(&[(Access::READ, "*")]), KeyGroups::new(trust));
    let mut ids = Vec::new();
    for (text, group) in [("decode-1", 0), ("trainer-1", 1)] {
        let (of, name) = (TrustGroup(group), name(text));
        let found = groups.group_of(&grants, Requester::Peer(&name), Instant(0));
        let KeyGroup::New { group, trust, .. } = found else { panic!("{found:?}") };
        assert_eq!((trust, groups.find(&grants, Requester::Peer(&name))), (of, Some(group)));
        ids.push(group);
    }
    assert_eq!(groups.group_of(&grants, Requester::Anybody, Instant(0)), KeyGroup::Known(ids[0]));
    grants.revoke(&Grant::read("*").unwrap());
    assert_eq!(groups.on_changed(&grants), ids);
}

/// The registration that is made before any peer asks is in a group of peers that have the grant.
#[test]
fn first_registration_is_in_a_group_of_its_peers() {
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    for (peers, of) in [("trainer-*", 1), ("trainer-7", 1), ("*", 0), ("decode-*", 0)] {
        let found = KeyGroups::new(trust.clone()).first(&grants(&[(Access::READ, peers)]));
        let KeyGroup::New { trust, .. } = found else { panic!("{found:?}") };
        assert_eq!(trust, TrustGroup(of), "{peers}");
    }
}

/// Patterns that cover more and more peers, with a request for a key after each: the groups before have no
/// peer any more, and past the limit the oldest of them makes room.
#[test]
fn broader_patterns_leave_room() {
    let (mut grants, mut groups) = (Grants::default(), KeyGroups::default());
    let peer = name(&"a".repeat(20));
    let shortest = 20 - KEY_GROUPS_MAX;
    for length in (shortest..=20).rev() {
        let pattern = "a".repeat(length) + "*";
        grants.add(Grant::read(&pattern).unwrap()).unwrap();
        assert_eq!(groups.on_changed(&grants), [], "{pattern}");
        let found = groups.group_of(&grants, Requester::Peer(&peer), Instant(0));
        let KeyGroup::New { group, evicted, .. } = found else { panic!("{pattern}: {found:?}") };
        assert_eq!(group, KeyGroupId((20 - length) as u64), "{pattern}");
        assert_eq!(evicted, (length == shortest).then_some(KeyGroupId(0)), "{pattern}");
    }
}

/// A grant that is widened leaves its group without peers: it makes room for their next group and for no other,
/// after one that failed. A grant that is narrowed again in time gives the group its peers back.
#[test]
fn widened_grant_leaves_room() {
    let names: Vec<_> = (0..=KEY_GROUPS_MAX).map(|at| format!("n{at}")).collect();
    let all: Vec<_> = names.iter().map(|name| (Access::READ, &**name)).collect();
    let (mut grants, mut groups) = (grants(&all), KeyGroups::default());
    let ask = |groups: &mut KeyGroups, grants: &Grants, at: usize| {
        groups.group_of(grants, Requester::Peer(&name(&names[at])), Instant(0))
    };
    for at in 0..KEY_GROUPS_MAX {
        assert!(matches!(ask(&mut groups, &grants, at), KeyGroup::New { evicted: None, .. }));
    }
    for _ in 0..2 {
        assert_eq!(ask(&mut groups, &grants, KEY_GROUPS_MAX), KeyGroup::Full);
        grants.add(Grant::write("n3").unwrap()).unwrap();
        assert_eq!(groups.on_changed(&grants), []);
        let has_room = |at: usize| groups.has_room_for(&grants, Requester::Peer(&name(&names[at])));
        assert!(has_room(3) && !has_room(KEY_GROUPS_MAX));
        grants.revoke(&Grant::write("n3").unwrap());
        assert_eq!(groups.on_changed(&grants), []);
        assert_eq!(ask(&mut groups, &grants, 3), KeyGroup::Known(KeyGroupId(3)));
    }
    groups.on_failed(KeyGroupId(1), Instant(0));
    grants.add(Grant::write("n3").unwrap()).unwrap();
    assert_eq!(groups.on_changed(&grants), []);
    for (at, gone) in [(KEY_GROUPS_MAX, 1), (3, 3)] {
        let found = ask(&mut groups, &grants, at);
        let KeyGroup::New { evicted, .. } = found else { panic!("n{at}: {found:?}") };
        assert_eq!(evicted, Some(KeyGroupId(gone)), "n{at}");
    }
    assert_eq!(ask(&mut groups, &grants, 1), KeyGroup::Full);
}

/// A group that makes room is of no requester, whatever patterns there are and which one is added or
/// widened.
#[test]
fn group_that_makes_room_is_of_no_requester() {
    const PATTERNS: [&str; 9] = ["*", "**", "a*", "*a", "a*b", "a:*", "*:b", "a:b", "ab"];
    let names = ["a", "ab", "b", "a:b", "a:a", "b:b", "ba", "acb", "a:c:b"].map(name);
    let requesters = || {
        let peers = names.iter().map(Requester::Peer);
        peers.chain([Requester::Own, Requester::Anybody])
    };
    let mut seen = [0; 2];
    let sets = (0..1_u32 << PATTERNS.len()).filter(|set| set.count_ones() <= 3);
    for (set, added) in sets.flat_map(|set| PATTERNS.map(|added| (set, added))) {
        let of_set = PATTERNS.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        let all: Vec<_> = of_set.map(|(_, peers)| (Access::READ, *peers)).collect();
        let (mut grants, mut groups) = (grants(&all), KeyGroups::default());
        for requester in requesters() {
            groups.group_of(&grants, requester, Instant(0));
        }
        grants.add(Grant::read_write(added).unwrap()).unwrap();
        groups.on_changed(&grants);
        let used: Vec<_> = requesters().filter_map(|it| groups.find(&grants, it)).collect();
        for group in &groups.groups {
            seen[usize::from(group.is_nobodys)] += 1;
            assert!(!group.is_nobodys || !used.contains(&group.id), "{grants:?}, {group:?}");
        }
    }
    assert!(seen.iter().all(|groups| *groups > 100), "{seen:?}");
}
