package queue

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// body is what does not change of a message, as Redis keeps it.
type body struct {
	Topic     string            `json:"topic"`
	Sandbox   sandpit.ID        `json:"sandbox"`
	Kind      Kind              `json:"kind"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt int64             `json:"created_at"` // ms since 1970
}

// Schedule makes m pending; see Producer.
func (q *Redis) Schedule(ctx context.Context, m Message) (Message, error) {
	m, err := Prepare(m, time.Now())
	if err != nil {
		return Message{}, err
	}
	text, err := json.Marshal(body{m.Topic, m.Sandbox, m.Kind, m.Metadata, m.CreatedAt.UnixMilli()})
	if err != nil {
		return Message{}, sandpit.Errorf(sandpit.Invalid, "schedule %s of %s: %w", m.Kind, m.Sandbox, err)
	}
	_, err = q.runCommand(ctx, "schedule", m.ID, m.Topic, string(m.Sandbox), string(m.Kind), m.Due.UnixMilli(), text)
	if err != nil {
		return Message{}, err
	}
	return m, nil
}

// Reschedule moves the pending message; see Producer.
func (q *Redis) Reschedule(ctx context.Context, sandbox sandpit.ID, kind Kind, due time.Time) (bool, error) {
	if err := checkSlot(sandbox, kind); err != nil {
		return false, err
	}
	if err := CheckTime(due); err != nil {
		return false, err
	}
	reply, err := q.runCommand(ctx, "reschedule", string(sandbox), string(kind), due.UnixMilli())
	return reply == "ok", err
}

// Cancel removes messages of a sandbox; see Producer.
func (q *Redis) Cancel(ctx context.Context, sandbox sandpit.ID, kinds ...Kind) (int, error) {
	if err := checkSlot(sandbox, kinds...); err != nil {
		return 0, err
	}
	args := []any{string(sandbox)}
	for _, k := range kinds {
		args = append(args, string(k))
	}
	reply, err := q.runCommand(ctx, "cancel", args...)
	n, _ := reply.(int64) // nothing if there was an error
	return int(n), err
}

// Claim takes messages that are due; see Consumer.
func (q *Redis) Claim(ctx context.Context, now time.Time, topics []string, n int, visibility time.Duration) ([]Claim, error) {
	n, err := CheckClaim(now, topics, n, visibility)
	if err != nil {
		return nil, err
	}
	until, token := Millis(now.Add(visibility)), NewToken()
	reply, err := q.runCommand(ctx, "claim", appendTopics(topics, now.UnixMilli(), n, until.UnixMilli(), token)...)
	if err != nil {
		return nil, err
	}
	list, err := parseMessages(reply)
	claims := make([]Claim, 0, len(list))
	for _, m := range list {
		claims = append(claims, Claim{Message: m, Token: token, Until: until})
	}
	return claims, err
}

// Next returns when there may be something to claim; see Consumer.
func (q *Redis) Next(ctx context.Context, topics []string) (time.Time, bool, error) {
	if err := CheckTopics(topics...); err != nil {
		return time.Time{}, false, err
	}
	reply, err := q.runCommand(ctx, "next", appendTopics(topics)...)
	if err != nil || reply == "" {
		return time.Time{}, false, err
	}
	at, err := parseMillis(reply)
	return at, err == nil, err
}

// Extend moves the end of a claim; see Holder.
func (q *Redis) Extend(ctx context.Context, c Claim, until time.Time) (Claim, error) {
	if err := CheckTime(until); err != nil {
		return Claim{}, err
	}
	if err := q.updateClaimed(ctx, "extend", c, until.UnixMilli()); err != nil {
		return Claim{}, err
	}
	c.Until = Millis(until)
	return c, nil
}

// Complete removes a message that was done; see Holder.
func (q *Redis) Complete(ctx context.Context, c Claim) error {
	return q.updateClaimed(ctx, "complete", c)
}

// Retry makes a message pending again; see Holder.
func (q *Redis) Retry(ctx context.Context, c Claim, due time.Time, cause string) error {
	if err := CheckTime(due); err != nil {
		return err
	}
	return q.updateClaimed(ctx, "retry", c, due.UnixMilli(), Cause(cause))
}

// Bury makes a message a dead letter; see Holder.
func (q *Redis) Bury(ctx context.Context, c Claim, cause string) error {
	return q.updateClaimed(ctx, "bury", c, Cause(cause), MaxDead)
}

func (q *Redis) updateClaimed(ctx context.Context, what string, c Claim, args ...any) error {
	reply, err := q.runCommand(ctx, what, append([]any{c.ID, c.Token}, args...)...)
	if err == nil && reply != "ok" {
		return Lost(what, c)
	}
	return err
}

// Revive makes a dead letter pending; see DeadLetters.
func (q *Redis) Revive(ctx context.Context, id string, due time.Time) error {
	if err := CheckTime(due); err != nil {
		return err
	}
	switch reply, err := q.runCommand(ctx, "revive", id, due.UnixMilli()); {
	case err != nil:
		return err
	case reply == "taken":
		return Taken(id)
	case reply != "ok":
		return NoLetter(id)
	}
	return nil
}

// Drop removes a dead letter; see DeadLetters.
func (q *Redis) Drop(ctx context.Context, id string) error {
	reply, err := q.runCommand(ctx, "drop", id)
	if err == nil && reply != "ok" {
		return NoLetter(id)
	}
	return err
}

// scanned is how many messages one call of the script looks at, so that a long
// list does not keep the server from everything else.
const scanned = 1000

// List returns messages; see Keeper.
func (q *Redis) List(ctx context.Context, f Filter) ([]Message, error) {
	f, err := f.Check()
	if err != nil {
		return nil, err
	}
	set, after := "live", f.After
	if f.Dead {
		set = "dead"
	}
	var list []Message
	for {
		reply, err := q.runCommand(ctx, "list", set, after, f.Limit-len(list), scanned, f.Topic, string(f.Sandbox), string(f.Kind))
		if err != nil {
			return nil, err
		}
		rows, ok := reply.([]any)
		if !ok || len(rows) == 0 {
			return nil, unexpectedReply(reply)
		}
		more, err := parseMessages(rows[1:])
		list = append(list, more...)
		after, ok = rows[0].(string)
		if err != nil || !ok || after == "" || len(list) >= f.Limit {
			return list, err
		}
	}
}

// Stats counts messages; see Keeper.
func (q *Redis) Stats(ctx context.Context) (Stats, error) {
	reply, err := q.runCommand(ctx, "stats")
	if err != nil {
		return Stats{}, err
	}
	fields, ok := parseTexts(reply, 4)
	if !ok {
		return Stats{}, unexpectedReply(reply)
	}
	var s Stats
	for i, n := range []*int{&s.Pending, &s.Claimed, &s.Dead} {
		if *n, err = strconv.Atoi(fields[i]); err != nil {
			return Stats{}, unexpectedReply(reply)
		}
	}
	if fields[3] != "" {
		s.OldestDue, err = parseMillis(fields[3])
	}
	return s, err
}

// Shift moves the times of messages; see Keeper.
func (q *Redis) Shift(ctx context.Context, topics []string, by time.Duration) error {
	if err := CheckTopics(topics...); err != nil {
		return err
	}
	_, err := q.runCommand(ctx, "shift", appendTopics(topics, by.Milliseconds(), NewToken())...)
	return err
}

// appendTopics returns arguments followed by topics.
func appendTopics(topics []string, args ...any) []any {
	args = slices.Clip(args)
	for _, t := range topics {
		args = append(args, t)
	}
	return args
}

// parseMessages parses the messages in a reply of the script. It omits those that it cannot
// parse, and the error names the first of them.
func parseMessages(reply any) ([]Message, error) {
	rows, ok := reply.([]any)
	if !ok {
		return nil, unexpectedReply(reply)
	}
	var bad error
	list := make([]Message, 0, len(rows))
	for _, r := range rows {
		fields, ok := parseTexts(r, 5)
		if !ok {
			return list, unexpectedReply(r)
		}
		m, err := readMessage(fields)
		if err == nil {
			list = append(list, m)
		} else if bad == nil {
			bad = err
		}
	}
	return list, bad
}

// readMessage reads ID, body, due, attempts and last error.
func readMessage(fields []string) (Message, error) {
	id := fields[0]
	if fields[1] == "" {
		return Message{}, sandpit.WithHint(sandpit.Errorf(sandpit.Internal, "redis: message %.40q has lost its content", id),
			"Something else removes keys of this Redis server. Look at its maxmemory-policy.")
	}
	var b body
	if err := json.Unmarshal([]byte(fields[1]), &b); err != nil {
		return Message{}, sandpit.Errorf(sandpit.Internal, "redis: message %.40q: %w", id, err)
	}
	due, err := parseMillis(fields[2])
	if err != nil {
		return Message{}, err
	}
	attempts, err := strconv.Atoi(fields[3])
	if err != nil || attempts < 0 {
		return Message{}, sandpit.Errorf(sandpit.Internal, "redis: message %.40q: %.40q attempts", id, fields[3])
	}
	m := Message{
		ID: id, Topic: b.Topic, Sandbox: b.Sandbox, Kind: b.Kind, Metadata: b.Metadata, Due: due,
		Attempts: attempts, LastError: Cause(fields[4]), CreatedAt: time.UnixMilli(b.CreatedAt).UTC(),
	}
	if err := m.validate(); err != nil {
		return Message{}, sandpit.Errorf(sandpit.Internal, "redis: message %.40q: %w", id, err)
	}
	return m, nil
}

func parseMillis(v any) (time.Time, error) {
	text, _ := v.(string) // "" is no number either
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, unexpectedReply(v)
	}
	return time.UnixMilli(ms).UTC(), nil
}

// parseTexts returns a reply of n texts.
func parseTexts(reply any, n int) ([]string, bool) {
	list, _ := reply.([]any) // none has not the right length
	if len(list) != n {
		return nil, false
	}
	out := make([]string, n)
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, false
		}
		out[i] = s
	}
	return out, true
}

// unexpectedReply is a reply that the script does not give.
func unexpectedReply(reply any) error {
	return sandpit.Errorf(sandpit.Internal, "redis: unexpected reply %.100q", reply)
}
