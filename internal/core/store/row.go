package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// columns of a sandbox, in the order in which encodeRow and decodeRow have them.
const columns = `id, owner, provider, state, reason, spec, deadline, action, handle,
	request_key, request_digest, pool, recreated, created_at, last_used_at, changed_at, version,
	idle_timeout, idle_action, auto_stop, auto_archive, auto_delete, recreate, ignore_background,
	suspended, checkpointed_at, auto_suspend, wake_on_use, checkpoint_every, term,
	prepared, admin, idled`

// specColumn is the place of the spec among the values of encodeRow.
const specColumn = 5

const (
	selectRows = `SELECT ` + columns + ` FROM sandboxes `
	// name (?34) is only for its index: the spec has it, too.
	insertRow = `INSERT INTO sandboxes (` + columns + `, name) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
		?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34)`
	// created_at (?14) stays. ?35 is the version before.
	updateRow = `UPDATE sandboxes SET owner = ?2, provider = ?3, state = ?4, reason = ?5, spec = ?6, deadline = ?7,
		action = ?8, handle = ?9, request_key = ?10, request_digest = ?11, pool = ?12, recreated = ?13,
		last_used_at = max(ifnull(last_used_at, ?15), ifnull(?15, last_used_at)), changed_at = ?16, version = ?17,
		idle_timeout = ?18, idle_action = ?19, auto_stop = ?20, auto_archive = ?21, auto_delete = ?22,
		recreate = ?23, ignore_background = ?24,
		suspended = ?25, checkpointed_at = ?26, auto_suspend = ?27, wake_on_use = ?28, checkpoint_every = ?29, term = ?30,
		prepared = ?31, admin = ?32, idled = ?33, name = ?34
		WHERE id = ?1 AND version = ?35 AND ?14 IS ?14
		RETURNING created_at, last_used_at`
)

// encodeRow checks a row and returns its columns, and the row as it will come back.
func encodeRow(r Row) ([]any, Row, error) {
	if err := checkRow(r); err != nil {
		return nil, Row{}, err
	}
	spec, kept, err := encodeSpec(r.Spec)
	if err != nil {
		return nil, Row{}, sandpit.Errorf(sandpit.Invalid, "spec of sandbox %s: %w", r.ID, err)
	}
	r.Spec = kept
	r.Handle = slices.Clone(r.Handle)
	r.Reason = shortenText(r.Reason)
	r.CreatedAt, r.Lease.Deadline = roundTime(r.CreatedAt), roundTime(r.Lease.Deadline)
	r.LastUsedAt, r.ChangedAt, r.CheckpointedAt = roundTime(r.LastUsedAt), roundTime(r.ChangedAt), roundTime(r.CheckpointedAt)
	p := r.Policy
	return []any{
		r.ID, r.Lease.Owner, r.Provider, r.State, r.Reason, spec, toMicros(r.Lease.Deadline), r.Lease.Action,
		r.Handle, r.Key, r.Digest, r.Pool, r.Recreated,
		toMicros(r.CreatedAt), toMicros(r.LastUsedAt), toMicros(r.ChangedAt), r.Version,
		p.IdleTimeout, p.IdleAction, p.AutoStop, p.AutoArchive, p.AutoDelete, p.Recreate, p.IgnoreBackground,
		r.Suspended, toMicros(r.CheckpointedAt), p.AutoSuspend, p.WakeOnUse, p.CheckpointEvery, r.Term,
		r.Prepared, r.Admin, r.Idled, r.reservedName(),
	}, r, nil
}

// reservedName returns the name that no other sandbox of the owner may have, or "".
func (r Row) reservedName() string {
	if r.Pool != "" || r.State == sandpit.StateDeleting || r.State == sandpit.StateDeleted {
		return ""
	}
	return r.Spec.Name
}

// encodeSpec returns a spec as text, and as it will come back. It refuses one that
// would come back changed, which is what JSON does to text that is not UTF-8.
func encodeSpec(s sandpit.Spec) (text string, kept sandpit.Spec, err error) {
	first, err := json.Marshal(s)
	if err != nil {
		return "", kept, err
	}
	if len(first) > MaxSpec {
		return "", kept, fmt.Errorf("%d bytes, want %d or fewer", len(first), MaxSpec)
	}
	if err := json.Unmarshal(first, &kept); err != nil {
		return "", kept, errors.New("it does not survive being kept")
	}
	second, err := json.Marshal(kept)
	if err == nil && !bytes.Equal(first, second) {
		err = errors.New("not UTF-8")
	}
	return string(first), kept, err
}

// checkRow returns an Invalid error unless the file can keep r.
func checkRow(r Row) error {
	if err := r.ID.Validate(); err != nil {
		return err
	}
	if problem := problemOf(r); problem != "" {
		return sandpit.Errorf(sandpit.Invalid, "sandbox %s: %s is out of bounds", r.ID, problem)
	}
	return nil
}

// problemOf describes what is wrong with a row, "" for nothing. It omits the value, which
// may be a secret.
func problemOf(r Row) string {
	texts := []struct{ name, text string }{
		{"owner", r.Lease.Owner},
		{"provider", r.Provider},
		{"key", r.Key},
		{"digest", r.Digest},
		{"pool", r.Pool},
		{"prepared image", string(r.Prepared)},
	}
	for _, f := range texts {
		if len(f.text) > MaxName || !utf8.ValidString(f.text) {
			return f.name
		}
	}
	switch {
	case !r.State.Valid():
		return "state"
	case !isAction(r.Lease.Action):
		return "action"
	case !isAction(r.Policy.IdleAction), r.Policy.Recreate < 0,
		min(r.Policy.IdleTimeout, r.Policy.AutoStop, r.Policy.AutoArchive, r.Policy.AutoDelete,
			r.Policy.AutoSuspend, r.Policy.CheckpointEvery) < 0:
		return "policy"
	case r.Term < 0:
		return "term"
	case len(r.Handle) > MaxHandle:
		return "handle"
	case r.Recreated < 0:
		return "count of how often it was made again"
	case r.Version < 1:
		return "version"
	}
	for _, t := range []time.Time{r.CreatedAt, r.Lease.Deadline, r.LastUsedAt, r.ChangedAt, r.CheckpointedAt} {
		if !inRange(t) {
			return "date"
		}
	}
	return ""
}

func isAction(a sandpit.Action) bool {
	switch a {
	case "", sandpit.ActionKill, sandpit.ActionStop, sandpit.ActionPause, sandpit.ActionSuspend:
		return true
	default:
		return false
	}
}

// decodeRow reads and checks what encodeRow made. Its error names the sandbox.
func decodeRow(c *cells) (Row, error) {
	var r Row
	r.ID = sandpit.ID(c.nextText())
	r.Lease.Owner, r.Provider = c.nextText(), c.nextText()
	r.State, r.Reason = sandpit.State(c.nextText()), c.nextText()
	spec := c.nextText()
	r.Lease.Deadline, r.Lease.Action = c.nextTime(), sandpit.Action(c.nextText())
	r.Handle = c.nextBlob()
	r.Key, r.Digest, r.Pool = c.nextText(), c.nextText(), c.nextText()
	r.Recreated = int(c.nextInt())
	r.CreatedAt, r.LastUsedAt, r.ChangedAt = c.nextTime(), c.nextTime(), c.nextTime()
	r.Version = c.nextInt()
	r.Policy = Policy{
		IdleTimeout: c.nextDuration(), IdleAction: sandpit.Action(c.nextText()), AutoStop: c.nextDuration(), AutoArchive: c.nextDuration(),
		AutoDelete: c.nextDuration(), Recreate: int(c.nextInt()), IgnoreBackground: c.nextInt() != 0,
	}
	r.Suspended, r.CheckpointedAt = c.nextInt() != 0, c.nextTime()
	r.Policy.AutoSuspend, r.Policy.WakeOnUse, r.Policy.CheckpointEvery = c.nextDuration(), c.nextInt() != 0, c.nextDuration()
	r.Term = c.nextDuration()
	r.Prepared, r.Admin, r.Idled = sandpit.Image(c.nextText()), c.nextInt() != 0, c.nextInt() != 0
	// The errors of JSON quote what they find, and Spec.Env may hold secrets.
	if len(spec) > MaxSpec || json.Unmarshal([]byte(spec), &r.Spec) != nil {
		c.rejectValue("spec")
	}
	if r.ID.Validate() != nil {
		c.rejectValue("ID")
	} else if problem := problemOf(r); problem != "" {
		c.rejectValue(problem)
	}
	if c.err != nil {
		return Row{}, fmt.Errorf("sandbox %.40q: %w", string(r.ID), c.err)
	}
	return r, nil
}
