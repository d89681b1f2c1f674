package queue

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Kind is the kind of operation: "deadline", "idle", "archive" and so on. The queue does
// not interpret it. It has 1 to 64 lower-case letters, digits,
// "-" and "_", and starts with a letter.
type Kind string

// Message is one operation to be done later.
//
// A message is pending, then claimed by a worker, then gone or pending again; one
// that failed permanently is a dead letter. For each Sandbox and Kind at most one is
// pending and at most one is claimed. While one is claimed the pending one of the
// same Sandbox and Kind waits, so that no two of them run at the same time.
type Message struct {
	// ID is given by the queue: 32 hexadecimal digits. IDs sort by the time they
	// were made, as far as clocks agree.
	ID string `json:"id"`
	// Topic is the identity of the server that may perform it. It has 1 to 128 letters,
	// digits, "-", "_" and ".".
	Topic string `json:"topic"`
	// Sandbox is what it is to be done to.
	Sandbox sandpit.ID `json:"sandbox"`
	Kind    Kind       `json:"kind"`
	// Metadata is the caller's: at most MaxMetadata bytes as JSON, no secrets.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Due is when. Queues keep it to the millisecond, rounded down.
	Due time.Time `json:"due"`
	// Attempts is how often it failed so far, given by the queue.
	Attempts int `json:"attempts,omitempty"`
	// LastError is what the last attempt failed of, at most MaxError bytes, given
	// by the queue.
	LastError string `json:"last_error,omitempty"`
	// CreatedAt is when it was scheduled, to the millisecond, given by the queue.
	CreatedAt time.Time `json:"created_at"`
}

// Claim is a message that one worker holds until Until. After that, Claim may give it to
// another worker with another token.
type Claim struct {
	Message
	// Token makes late answers harmless: it becomes invalid when another worker claims
	// the message.
	Token string
	// Until is when the claim expires, in milliseconds.
	Until time.Time
}

// The bounds. What exceeds the first four is refused with Invalid.
const (
	MaxMetadata   = 4096           // bytes of Metadata as JSON
	MaxTopics     = 16             // topics in one call
	MaxKinds      = 16             // kinds in one call
	MaxVisibility = 24 * time.Hour // of a claim
	MaxClaims     = 100            // messages from one call of Claim; n above is taken as this
	MaxError      = 500            // bytes of LastError; longer ones are cut
	MaxDead       = 1000           // dead letters of one topic; the oldest (by ID) goes when one more comes
	MaxList       = 1000           // messages from one call of List; limits above are taken as this
	DefaultList   = 100            // messages from List without a limit
)

// Queue keeps messages. Every call is atomic: it happens wholly or not at all,
// also when the server is killed in the middle, and no other call sees it half
// done. All methods may be called concurrently, by several processes where the
// queue is shared.
//
// Errors: Invalid for arguments out of bounds, Unavailable when the queue cannot
// be reached for now, the context's error when that ended first, and what the
// methods say themselves.
type Queue interface {
	Producer
	Consumer
	Holder
	DeadLetters
	Keeper
}

// Producer puts messages into a queue.
type Producer interface {
	// Schedule makes m pending and returns it as it is kept. It replaces the
	// pending message of the same Sandbox and Kind; of concurrent calls one wins
	// and one message is left. A claimed one is not touched and finishes, and its
	// answer does not touch the new message. ID, Attempts, LastError and CreatedAt
	// of m are ignored.
	Schedule(ctx context.Context, m Message) (Message, error)
	// Reschedule gives the pending message another time and keeps everything else.
	// It reports false if none is pending; a claimed one is not.
	Reschedule(ctx context.Context, sandbox sandpit.ID, kind Kind, due time.Time) (bool, error)
	// Cancel removes pending and claimed messages of these kinds, or of all kinds
	// if none is named, and returns how many. A worker that has claimed one continues,
	// but its answer fails with Conflict. Dead letters stay.
	Cancel(ctx context.Context, sandbox sandpit.ID, kinds ...Kind) (int, error)
}

// Consumer finds messages that are due.
type Consumer interface {
	// Claim takes up to n messages of the topics whose Due is not after now,
	// pending ones and those whose claim has run out (Until not after now), the
	// oldest Due first. The caller holds them until now + visibility: no other
	// worker gets them before. A pending message waits while another of the same Sandbox
	// and Kind is claimed and that claim has not run out; a claim that ran out
	// while a newer message is pending is dropped, because that replaced it. n is 1 or
	// more, visibility 1 ms to MaxVisibility. Without a due message the list is empty.
	Claim(ctx context.Context, now time.Time, topics []string, n int, visibility time.Duration) ([]Claim, error)
	// Next returns when the next claim may be possible. That is the earliest of:
	// Due of the pending messages of the topics that do not wait for a claimed one,
	// Until of the claims that others wait for, and Until of the topics' other
	// claims. It reports false without any of these. The time may be in the past: then
	// Claim at now returns or drops a message, so a caller that alternates both calls
	// makes progress.
	Next(ctx context.Context, topics []string) (time.Time, bool, error)
}

// Holder answers claims. A claim that the caller no longer holds is a Conflict: it was
// answered, canceled, or it expired and another worker took or dropped it. Expiry alone does
// not end a claim: until another worker claims the message, a late answer counts.
type Holder interface {
	// Extend moves the end of the claim, and returns the claim with it. An end that
	// is not after now makes the message pending again, unchanged.
	Extend(ctx context.Context, c Claim, until time.Time) (Claim, error)
	// Complete removes the message: it was done.
	Complete(ctx context.Context, c Claim) error
	// Retry makes the message pending again, due then, with one more attempt and
	// cause as LastError. If a newer one of the same Sandbox and Kind is pending,
	// this one is removed instead, without an error.
	Retry(ctx context.Context, c Claim, due time.Time, cause string) error
	// Bury makes the message a dead letter, with one more attempt and cause as
	// LastError.
	Bury(ctx context.Context, c Claim, cause string) error
}

// DeadLetters handles messages that failed permanently.
type DeadLetters interface {
	// Revive makes a dead letter pending, due at due, without attempts. It keeps the ID and
	// LastError. NotFound: no such dead letter. Conflict: another message of the same
	// Sandbox and Kind is pending or claimed.
	Revive(ctx context.Context, id string, due time.Time) error
	// Drop removes a dead letter. NotFound.
	Drop(ctx context.Context, id string) error
}

// Keeper looks after a queue.
type Keeper interface {
	// List returns messages in the order of their IDs. Messages that come and go
	// meanwhile may be missing.
	List(ctx context.Context, f Filter) ([]Message, error)
	// Stats counts the messages of all topics.
	Stats(ctx context.Context) (Stats, error)
	// Shift moves Due of the pending and claimed messages of these topics, and
	// Until of the claims, because the clock was set by so much. Dead letters keep
	// their times.
	Shift(ctx context.Context, topics []string, by time.Duration) error
	// Close gives back what the queue holds: connections, not messages. It may be
	// called again. Nothing else may be called afterwards.
	Close() error
}

// Filter chooses messages. Fields that are zero choose everything.
type Filter struct {
	Topic   string
	Sandbox sandpit.ID
	Kind    Kind
	// Dead chooses the dead letters; otherwise it is pending and claimed messages.
	Dead bool
	// After is the ID of the last message of the page before.
	After string
	// Limit is at most so many, at most MaxList. Default: DefaultList.
	Limit int
}

// Stats counts messages.
type Stats struct {
	Pending int `json:"pending"`
	Claimed int `json:"claimed"`
	Dead    int `json:"dead"`
	// OldestDue is the earliest Due of the pending messages. Zero: none is pending.
	OldestDue time.Time `json:"oldest_due,omitzero"`
}
