package manager

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// guestAudit admits and reports what is done inside sandboxes.
type guestAudit struct {
	events *Events
	o      *Options
}

type unobservedKey struct{}

// withoutObservation returns a context whose commands are the manager's own checks, which cause
// neither events nor metrics.
func withoutObservation(ctx context.Context) context.Context {
	return context.WithValue(ctx, unobservedKey{}, true)
}

// observeGuest has everything that is done in a sandbox reported, whatever API it comes from: every
// front end reaches the guest through its Instance. It is called with each instance before anything
// uses it.
func (ga *guestAudit) observeGuest(rec *sandboxRecord, i sandpit.Instance) {
	guest, ok := sandpit.As[sandpit.ObservedGuest](i.Guest())
	if !ok {
		return // the guest cannot be observed
	}
	guest.Observe(sandpit.GuestObserver{
		Admit:   ga.newAdmission(rec),
		Confine: ga.newConfinement(rec),
		Called: func(ctx context.Context, c sandpit.GuestCall) {
			rec.doubtAfter(c.Err)
			if row := rec.currentRow(); isObserved(ctx, row) {
				ga.recordCall(ctx, row, c)
			}
		},
		Ended: func(ctx context.Context, took time.Duration, status sandpit.ExitStatus, err error) {
			if isObserved(ctx, rec.currentRow()) {
				ga.o.Observer.Ended(took, status, err)
			}
		},
	})
}

// newAdmission returns the function that decides about commands in a sandbox, or nil. It decides
// about the manager's own checks, too: templates contain them.
func (ga *guestAudit) newAdmission(rec *sandboxRecord) func(context.Context, []string, string) error {
	if ga.o.Admit == nil {
		return nil
	}
	return func(ctx context.Context, args []string, dir string) error {
		if err := ga.o.Admit(ctx, args, dir); err != nil {
			if row := rec.currentRow(); !isObserved(ctx, row) { // otherwise the client of the guest reports it
				c := sandpit.CommandCall(sandpit.RunCommand, args)
				c.Err = sandpit.NotAdmitted(err)
				ga.recordCall(ctx, row, c)
			}
			return sandpit.WithHint(&refusedCommand{err}, sandpit.HintOf(err)) // other errors do not pass the client of the guest
		}
		return nil
	}
}

// newConfinement returns the function that confines file calls in a sandbox, or nil. The calls of
// providers, and those of a build, which creates files everywhere, are not confined.
func (ga *guestAudit) newConfinement(rec *sandboxRecord) func(context.Context) []string {
	if !ga.o.ConfineFiles {
		return nil
	}
	return func(ctx context.Context) []string {
		row := rec.currentRow()
		if row.Pool != "" || ctx.Value(providerCallKey{}) != nil {
			return nil
		}
		return row.Spec.FileDirs()
	}
}

// refusedCommand is the error of a command that was not admitted. Its text, which is for the
// caller, repeats the command, which may contain secrets.
type refusedCommand struct{ error }

func (r *refusedCommand) Unwrap() error { return r.error }

// withoutCommand returns an error for events and the log: without the text of a refused command.
func withoutCommand(err error) error {
	if _, refused := errors.AsType[*refusedCommand](err); refused {
		return sandpit.NotAdmitted(err)
	}
	return err
}

// isObserved reports whether calls in a sandbox are reported. A spare runs only what warms it up.
func isObserved(ctx context.Context, row store.Row) bool {
	return ctx.Value(unobservedKey{}) == nil && (row.Pool == "" || row.Pool == poolBuilds)
}

// recordCall records a call in a sandbox.
func (ga *guestAudit) recordCall(ctx context.Context, row store.Row, c sandpit.GuestCall) {
	ga.events.addEvent(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, row.Lease.Owner), Action: string(c.Action), Sandbox: row.ID,
		Args: callArgs(c), Err: c.Err, Took: c.Took,
	}, row.Lease.Owner, classOf(c.Action))
}

// eventClass is a class of events. Each actor has an allowance for each class, so that it cannot
// hide one kind of event behind another.
type eventClass string

const (
	classOperation eventClass = ""
	classCommand   eventClass = "command"
	classFile      eventClass = "file"
)

func classOf(a sandpit.GuestAction) eventClass {
	switch a {
	case sandpit.RunCommand, sandpit.OpenTerminal, sandpit.AttachCommand, sandpit.SignalCommand:
		return classCommand
	default:
		return classFile
	}
}

// The arguments of events about files that are added up when the same call is repeated before the
// event is written.
const (
	argBytes = "bytes"
	argCalls = "calls"
)

// callArgs returns the arguments of an event. They have no contents, which may be secret.
func callArgs(c sandpit.GuestCall) map[string]string {
	args := make(map[string]string, 4)
	set := func(name, value string) {
		if value != "" && value != "0" {
			args[name] = value
		}
	}
	switch c.Action {
	case sandpit.RunCommand, sandpit.OpenTerminal:
		args["program"], args["args"] = cutText(c.Program, maxPathArg), strconv.Itoa(c.Args)
		set("sha256", c.Digest)
		return args
	case sandpit.AttachCommand, sandpit.SignalCommand:
		set("pid", strconv.Itoa(c.PID))
		set("signal", strconv.Itoa(int(c.Signal)))
		return args
	default:
	}
	set("path", cutText(c.Path, maxPathArg))
	set("to", cutText(c.To, maxPathArg))
	set("files", strconv.Itoa(c.Files))
	switch c.Action {
	case sandpit.ReadFile, sandpit.ReadTree:
		args["direction"], args[argBytes] = "out", strconv.FormatInt(c.Bytes, 10)
	case sandpit.WriteFile, sandpit.WriteTree:
		args["direction"], args[argBytes] = "in", strconv.FormatInt(c.Bytes, 10)
	default:
	}
	return args
}

// maxPathArg bounds a path or program in an event, in bytes.
const maxPathArg = 1024

// mergeEvents adds to an event another one that differs only in amounts, and reports whether it
// did: reading a file in a thousand pieces is one event.
func mergeEvents(e *store.Event, other store.Event) bool {
	if e.Actor != other.Actor || e.Action != other.Action || e.Sandbox != other.Sandbox || e.Result != other.Result ||
		e.Args["path"] != other.Args["path"] || e.Args["to"] != other.Args["to"] || e.Args["request"] != other.Args["request"] || e.Args["path"] == "" {
		return false
	}
	number := func(args map[string]string, name string, missing int64) int64 {
		n, err := strconv.ParseInt(args[name], 10, 64)
		if err != nil {
			return missing
		}
		return n
	}
	if _, counted := e.Args[argBytes]; counted {
		e.Args[argBytes] = strconv.FormatInt(number(e.Args, argBytes, 0)+number(other.Args, argBytes, 0), 10)
	}
	e.Args[argCalls] = strconv.FormatInt(number(e.Args, argCalls, 1)+1, 10)
	e.Duration += other.Duration
	return true
}
