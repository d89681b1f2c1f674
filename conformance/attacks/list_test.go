package attacks_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// attack is one attempt.
type attack struct {
	// name is what the attacker calls it, and the subtest's name.
	name string
	// proves is one sentence.
	proves string
	as, in audience
	// mortal says that the sandbox may end itself by it.
	mortal bool
	// leaves says that the attempt needs to make files in the writable mount,
	// which only root of the sandbox can when an ordinary user runs the engine.
	leaves bool
	// count is how much the attacker does of it, long how much when time does
	// not matter; if zero it is as much as count.
	count, long int
	// play, if set, is the attempt, made from this side; else the attacker
	// makes it.
	play func(t *testing.T, s scene)
	// weakness, if set, is a known one: what the judge finds is reported, and
	// the subtest is skipped for it.
	weakness string
	// judge looks at what came of it. What holds for all is looked at anyway:
	// no secret came out, no other sandbox was harmed, the sandbox lives.
	judge func(t *testing.T, s scene)
}

// audience is a set of places or users.
type audience int

const (
	root audience = 1 << iota
	user
	imageBox
	hostBox
	client // the holder of the token outside

	anybody  = root | user
	everybox = imageBox | hostBox
	ordinary = "1000"
)

var audienceNames = []struct {
	bit  audience
	name string
}{{root, "root"}, {user, "user"}, {client, "client"}, {imageBox, "image"}, {hostBox, "host"}}

func (a audience) names() (names []string) {
	for _, n := range audienceNames {
		if a&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// group is a set of attempts that are made one after the other, in sandboxes of
// one engine of their own.
type group struct {
	name    string
	title   string
	attacks []attack
}

func groups() []group {
	return []group{
		{"files", "Files", fileAttacks()},
		{"mounts", "Mounts and namespaces", mountAttacks()},
		{"machine", "The machine's kernel and devices", machineAttacks()},
		{"calls", "System calls and processors", callAttacks()},
		{"neighbours", "Other sandboxes and networks", neighbourAttacks()},
		{"guest", "The guest and its clients", guestAttacks()},
		{"floods", "Floods", floodAttacks()},
		{"limits", "Limits", limitAttacks()},
	}
}

// TestAttacks makes every attempt, in every place, as every user.
func TestAttacks(t *testing.T) {
	t.Parallel()
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			for _, a := range g.attacks {
				t.Run(a.name, func(t *testing.T) { l.everywhere(t, a) })
			}
			l.expectCalm(t)
		})
	}
}

// everywhere makes an attempt in each of its places as each of its users.
func (l *lab) everywhere(t *testing.T, a attack) {
	t.Helper()
	for _, place := range []audience{imageBox, hostBox} {
		for _, who := range []audience{root, user, client} {
			if a.in&place == 0 || a.as&who == 0 {
				continue
			}
			t.Run(place.names()[0]+"/"+who.names()[0], func(t *testing.T) { l.attack(t, a, place, who) })
		}
	}
}

// TestDocument holds docs/attacks.md to the list.
func TestDocument(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, g := range groups() {
		for _, a := range g.attacks {
			if seen[a.name] || a.proves == "" || a.as == 0 || a.in == 0 {
				t.Errorf("%s: twice, or not complete", a.name)
			}
			seen[a.name] = true
		}
	}
	if len(seen) < 60 {
		t.Errorf("%d attempts, want 60 or more", len(seen))
	}
	path := filepath.Join("..", "..", "docs", "attacks.md")
	want := document(len(seen))
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go test ./conformance/attacks -run TestDocument -update", path, err)
	}
}

const preamble = `# Attacks

<!-- Written by: go test ./conformance/attacks -run TestDocument -update -->

This page lists %d attempts to break out of a sandbox, or to harm others from within one. The tests of
[conformance/attacks](../conformance/attacks) make all of them, with real sandboxes:

    go test ./conformance/attacks -run TestAttacks -v

` + "`" + longVariable + `=1` + "`" + ` makes races longer and floods higher.

A program inside attacks; the test judges from outside. It watches files, a process, sockets and settings of the
machine, and a second sandbox of the same engine, for the whole time. The attacker's output must not contain any of the
secrets there.

After every attempt all of that is unchanged, and the engine and its reaper are alive. So is the sandbox itself, unless
the line says *may end itself*.

| word | meaning |
| --- | --- |
| root, user | root of the sandbox; a user with uid 1000 |
| client | a program outside that has the sandbox's token |
| image | a sandbox that shows nothing of the machine |
| host | a sandbox with the machine's ` + "`/usr`" + ` and two of its directories, one of them writable |
`

func document(total int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, preamble, total)
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| attempt | as | in | what it proves |\n| --- | --- | --- | --- |\n", g.title)
		for _, a := range g.attacks {
			note := ""
			if a.mortal {
				note = " *May end itself.*"
			}
			if a.weakness != "" {
				note += " **Known weakness:** " + a.weakness
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s%s |\n", a.name, strings.Join(a.as.names(), ", "), strings.Join(a.in.names(), ", "), a.proves, note)
		}
	}
	return b.Bytes()
}
