package daytona

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// Renew implements sandpit.Renewer: it counts as a use of the sandbox, and changes the intervals and
// the deadline that differ.
func (i *Instance) Renew(ctx context.Context, e sandpit.Expiry) error {
	return i.b.whileLocked(ctx, "renew", func(ctx context.Context) error {
		now, err := i.b.readBox(ctx)
		if err != nil {
			return err
		}
		if err := i.b.setIntervals(ctx, e, now); err != nil {
			return asGone(err)
		}
		if err := i.b.setDeadline(ctx, e, now); err != nil {
			return asGone(err)
		}
		if now.State != stateStarted {
			return nil
		}
		err = i.b.p.control.call(ctx, cloudapi.Call{
			Operation: "renew", Sandbox: i.b.id, Method: http.MethodPost, Path: sandboxPath(i.b.ref, "last-activity"), Repeatable: true,
		})
		if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Conflict {
			return nil // an old server, or it has just stopped: calls into it count as well
		}
		return err
	})
}

// setIntervals changes the intervals that differ.
func (b *sandbox) setIntervals(ctx context.Context, e sandpit.Expiry, now box) error {
	want := b.p.intervalsFor(e)
	for _, one := range []struct {
		call string
		got  *int64
		want int64
	}{{"autostop", now.AutoStop, want.stop}, {"autoarchive", now.AutoArchive, want.archive}, {"autodelete", now.AutoDelete, want.remove}} {
		if one.got != nil && *one.got == one.want {
			continue
		}
		if _, err := b.p.control.change(ctx, b.id, b.ref, one.call, strconv.FormatInt(one.want, 10)); err != nil {
			return err
		}
	}
	return nil
}

// slack is how much earlier than wanted the cloud may delete a sandbox: it counts minutes.
const slack = 90 * time.Second

// setDeadline changes the time at which the cloud deletes the sandbox, if it differs. Servers count
// the minutes from the call or from the creation, so the answer is checked.
func (b *sandbox) setDeadline(ctx context.Context, e sandpit.Expiry, now box) error {
	deadline := e.Deadline
	if toTTL(e, time.Now()) == 0 {
		deadline = time.Time{}
	}
	if isNear(parseTime(now.AutoDestroyAt), deadline) {
		return nil
	}
	starts := []time.Time{time.Now(), parseTime(now.CreatedAt)}
	for _, from := range starts {
		minutes := "0"
		if !deadline.IsZero() {
			minutes = strconv.FormatInt(max(1, toMinutes(deadline.Sub(from))), 10)
		}
		changed, err := b.p.control.change(ctx, b.id, b.ref, "ttl", minutes)
		if err != nil {
			return asTooLate(err)
		}
		if isNear(parseTime(changed.AutoDestroyAt), deadline) || from.IsZero() {
			return nil
		}
	}
	return sandpit.Errorf(sandpit.Invalid, "deadline %s: Daytona does not accept it: %w", deadline.Format(time.RFC3339), sandpit.ErrDeadlineTooLate)
}

// asTooLate marks the refusal of a deadline that is later than Daytona allows: status 400.
func asTooLate(err error) error {
	if cloudapi.StatusOf(err) != http.StatusBadRequest {
		return err
	}
	return sandpit.Errorf(sandpit.Invalid, "%w: %w", sandpit.ErrDeadlineTooLate, err)
}

// isNear reports whether the cloud's time of deletion fits a deadline. Zero: never.
func isNear(got, want time.Time) bool {
	if got.IsZero() || want.IsZero() {
		return got.IsZero() && want.IsZero()
	}
	diff := got.Sub(want)
	return cmp.Compare(diff, -slack) > 0 && cmp.Compare(diff, slack) < 0
}
