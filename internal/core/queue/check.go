package queue

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

var (
	topicPattern = pattern.New(`^[A-Za-z0-9._-]{1,128}$`)
	kindPattern  = pattern.New(`^[a-z][a-z0-9_-]{0,63}$`)
)

// The functions below are for implementations of a queue, so that all of them check alike.

// Prepare checks a message that is to be scheduled, and returns it as a queue
// keeps it: with an ID, without attempts, its times in UTC and to the
// millisecond. The metadata is the message's own. now is its CreatedAt.
func Prepare(m Message, now time.Time) (Message, error) {
	m.ID = newID(now)
	m.Attempts, m.LastError = 0, ""
	m.CreatedAt = Millis(now)
	if err := m.Validate(); err != nil {
		return Message{}, err
	}
	m.Due = Millis(m.Due)
	m.Metadata = maps.Clone(m.Metadata)
	return m, nil
}

// Validate returns an Invalid error unless m can be scheduled.
func (m Message) Validate() error {
	if err := CheckTime(m.Due); err != nil {
		return err
	}
	return m.validate()
}

// validate leaves the time aside, which a shift may move anywhere.
func (m Message) validate() error {
	if err := CheckTopics(m.Topic); err != nil {
		return err
	}
	if err := checkSlot(m.Sandbox, m.Kind); err != nil {
		return err
	}
	for k, v := range m.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return sandpit.Errorf(sandpit.Invalid, "metadata of a message: %.40q is not UTF-8", k)
		}
	}
	text, err := json.Marshal(m.Metadata)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "metadata of a message: %w", err)
	}
	if len(text) > MaxMetadata {
		return sandpit.Errorf(sandpit.Invalid, "metadata of a message: %d bytes, want %d or fewer", len(text), MaxMetadata)
	}
	return nil
}

// CheckTopics returns an Invalid error unless each topic has the right form and
// there are 1 to MaxTopics.
func CheckTopics(topics ...string) error {
	if len(topics) == 0 || len(topics) > MaxTopics {
		return sandpit.Errorf(sandpit.Invalid, "%d topics, want 1 to %d", len(topics), MaxTopics)
	}
	for _, t := range topics {
		if !topicPattern().MatchString(t) {
			return sandpit.Errorf(sandpit.Invalid, "topic %.140q: want 1 to 128 letters, digits, '.', '-' and '_'", t)
		}
	}
	return nil
}

// CheckKinds returns an Invalid error unless each kind has the right form and
// there are at most MaxKinds.
func CheckKinds(kinds ...Kind) error {
	if len(kinds) > MaxKinds {
		return sandpit.Errorf(sandpit.Invalid, "%d kinds, want at most %d", len(kinds), MaxKinds)
	}
	for _, k := range kinds {
		if !kindPattern().MatchString(string(k)) {
			return sandpit.Errorf(sandpit.Invalid, "kind %.70q: want 1 to 64 lower-case letters, digits, '-' and '_', a letter first", string(k))
		}
	}
	return nil
}

// CheckTime returns an Invalid error unless t is in the years 1970 to 9999, which
// every queue can keep.
func CheckTime(t time.Time) error {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return sandpit.Errorf(sandpit.Invalid, "a message's time in the year %d, want 1970 to 9999", y)
	}
	return nil
}

// CheckClaim checks the arguments of Claim and returns n in bounds.
func CheckClaim(now time.Time, topics []string, n int, visibility time.Duration) (int, error) {
	if err := CheckTopics(topics...); err != nil {
		return 0, err
	}
	if err := CheckTime(now); err != nil {
		return 0, err
	}
	if n < 1 {
		return 0, sandpit.Errorf(sandpit.Invalid, "claim %d messages, want 1 or more", n)
	}
	if visibility < time.Millisecond || visibility > MaxVisibility {
		return 0, sandpit.Errorf(sandpit.Invalid, "claim messages for %v, want 1ms to %v", visibility, MaxVisibility)
	}
	return min(n, MaxClaims), nil
}

// Check returns f with its limit in bounds, or an Invalid error.
func (f Filter) Check() (Filter, error) {
	if f.Topic != "" {
		if err := CheckTopics(f.Topic); err != nil {
			return f, err
		}
	}
	if f.Sandbox != "" {
		if err := f.Sandbox.Validate(); err != nil {
			return f, err
		}
	}
	if f.Kind != "" {
		if err := CheckKinds(f.Kind); err != nil {
			return f, err
		}
	}
	if f.Limit < 0 || len(f.After) > maxID {
		return f, sandpit.Errorf(sandpit.Invalid, "list messages: limit %d after %.40q", f.Limit, f.After)
	}
	if f.Limit == 0 {
		f.Limit = DefaultList
	}
	f.Limit = min(f.Limit, MaxList)
	return f, nil
}

// Holds reports whether f chooses m; Dead, After and Limit are left aside.
func (f Filter) Holds(m Message) bool {
	return (f.Topic == "" || f.Topic == m.Topic) &&
		(f.Sandbox == "" || f.Sandbox == m.Sandbox) &&
		(f.Kind == "" || f.Kind == m.Kind)
}

// Cause returns the text of an error as a queue keeps it: in bounds, valid UTF-8.
func Cause(text string) string {
	return textlen.Cut(strings.ToValidUTF8(text, "\uFFFD"), MaxError)
}

// Millis returns t in UTC, rounded down to the millisecond.
func Millis(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// NewToken returns a token for a claim: 128 random bits.
func NewToken() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(raw)
}

// maxID is the length of an ID: 16 digits of time and 16 random ones.
const maxID = 32

// newID returns an ID that sorts by the time it was made, to the nanosecond.
func newID(now time.Time) string {
	raw := binary.BigEndian.AppendUint64(nil, uint64(now.UnixNano()))
	raw = append(raw, make([]byte, 8)...)
	_, _ = rand.Read(raw[8:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(raw)
}

// Lost returns the error for a claim that the caller no longer holds.
func Lost(what string, c Claim) error {
	return sandpit.Errorf(sandpit.Conflict, "%s %s of %s: the claim is no longer held", what, c.Kind, c.Sandbox)
}

// NoLetter is the answer to an ID that no dead letter has.
func NoLetter(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "dead letter %.40q not found", id)
}

// Taken returns the error of Revive while another message takes its place.
func Taken(id string) error {
	return sandpit.Errorf(sandpit.Conflict, "revive %.40q: another operation of its kind is scheduled for its sandbox", id)
}

func checkSlot(sandbox sandpit.ID, kinds ...Kind) error {
	if err := sandbox.Validate(); err != nil {
		return err
	}
	return CheckKinds(kinds...)
}

// recordFailure counts a failed attempt.
func (m *Message) recordFailure(cause string) { m.Attempts, m.LastError = m.Attempts+1, Cause(cause) }

// cloneMessage returns a copy that shares nothing with m.
func (m Message) cloneMessage() Message {
	m.Metadata = maps.Clone(m.Metadata)
	return m
}
