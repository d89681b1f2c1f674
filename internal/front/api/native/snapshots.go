package native

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	pathSnapshots = wire.Prefix + "/snapshots"
	pathSnapshot  = pathSnapshots + "/{snapshot}"
)

type newSnapshotIn struct {
	Body wire.NewSnapshot
}

type madeSnapshotOut struct {
	Location string `header:"Location" doc:"The path of the snapshot."`
	Body     sandpit.Snapshot
}

type snapshotIn struct {
	Snapshot string `path:"snapshot" maxLength:"63" doc:"The snapshot, by its ID or name."`
	Owner    string `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: the caller's own."`
}

type snapshotOut struct {
	Body sandpit.Snapshot
}

type snapshotsIn struct {
	Cursor  string     `query:"cursor" maxLength:"100" doc:"That of the page before."`
	Limit   int        `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most so many."`
	Owner   string     `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: everybody's, to them."`
	Sandbox sandpit.ID `query:"sandbox" maxLength:"20" doc:"What they were taken of. Default: any."`
}

type snapshotsOut struct {
	Body wire.Page[sandpit.Snapshot]
}

type forkIn struct {
	One

	Body wire.Fork
}

type forkOut struct {
	Body wire.Page[sandpit.Sandbox]
}

type rollbackIn struct {
	One

	Body wire.Rollback
}

type diffIn struct {
	From  string `query:"from" maxLength:"100" doc:"sandbox:ID, or snapshot: and an ID or name. Default: the image of the other."`
	To    string `query:"to" maxLength:"100" doc:"As from."`
	Patch bool   `query:"patch" doc:"Tell how small texts differ, too."`
	Owner string `query:"owner" maxLength:"200" doc:"Whose snapshots; for administrators. Default: the caller's own."`
}

type diffOut struct {
	Body sandpit.FileDiff
}

// snapshotHandlers serve snapshots, and what is done with them: fork, rollback, comparison.
type snapshotHandlers struct {
	manager *manager.Manager
	access  access
	log     *slog.Logger
}

// register adds the operations on snapshots.
func (h *snapshotHandlers) register(r *registrar) {
	op := newOperation(http.MethodPost, pathSnapshots, "createSnapshot", "Save a sandbox, which goes on")
	op.DefaultStatus = http.StatusCreated
	op.Description = `Sandboxes with the image "snapshot:" and its ID or name begin as it is. It stays until it is deleted, also after its sandbox.`
	addOperation(r, op, h.createSnapshot)
	op = newOperation(http.MethodGet, pathSnapshots, "listSnapshots", "List snapshots")
	addOperation(r, op, h.listSnapshots)
	addOperation(r, newOperation(http.MethodGet, pathSnapshot, "getSnapshot", "Look at a snapshot"), func(ctx context.Context, in *snapshotIn) (*snapshotOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err != nil {
			return nil, err
		}
		found, err := h.manager.Snapshots().Get(ctx, owner, in.Snapshot)
		return &snapshotOut{found}, err
	})
	op = newOperation(http.MethodDelete, pathSnapshot, "deleteSnapshot", "Delete a snapshot")
	op.Description = "Sandboxes that were made of it go on. 409 while one is being made."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *snapshotIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Snapshots().Delete(ctx, owner, in.Snapshot)
	})
	op = newOperation(http.MethodPost, pathSandbox+"/fork", "forkSandbox", "Make copies of a sandbox, which goes on")
	op.DefaultStatus = http.StatusCreated
	op.Description = "All or none. If the client gives up before, those that were made are deleted."
	addOperation(r, op, h.forkSandbox)
	op = newOperation(http.MethodPost, pathSandbox+"/rollback", "rollbackSandbox", "Make a sandbox what a snapshot of it was")
	op.DefaultStatus = http.StatusOK
	op.Description = "It runs then. What it has become since is lost."
	addOperation(r, op, func(ctx context.Context, in *rollbackIn) (*sandboxOut, error) {
		return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
			return h.manager.Snapshots().RollBack(ctx, id, in.Body.Snapshot)
		})
	})
	op = newOperation(http.MethodGet, wire.Prefix+"/diff", "compareFiles", "Tell which files differ between sandboxes, snapshots and their image")
	op.Description = "Sandboxes must run. Mounts are not looked at."
	addOperation(r, op, h.compareFiles)
	h.registerExport(r)
	h.registerImport(r)
}

func (h *snapshotHandlers) createSnapshot(ctx context.Context, in *newSnapshotIn) (*madeSnapshotOut, error) {
	if _, err := api.Find(ctx, h.manager, in.Body.Sandbox); err != nil {
		return nil, err
	}
	made, err := h.manager.Snapshots().Create(ctx, in.Body.Sandbox, in.Body.Name)
	if err != nil {
		return nil, err
	}
	return &madeSnapshotOut{pathSnapshots + "/" + string(made.ID), made}, nil
}

func (h *snapshotHandlers) listSnapshots(ctx context.Context, in *snapshotsIn) (*snapshotsOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list snapshots of others")
	if err != nil {
		return nil, err
	}
	f := store.SnapshotFilter{
		Owner: owner, All: all, Sandbox: in.Sandbox, After: sandpit.SnapshotID(in.Cursor), Limit: in.Limit + 1,
	}
	if in.Cursor != "" && f.After.Validate() != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "cursor %.40q: it is none", in.Cursor)
	}
	list, err := h.manager.Snapshots().List(ctx, f)
	if err != nil {
		return nil, err
	}
	return &snapshotsOut{paged(list, in.Limit, func(n sandpit.Snapshot) string { return string(n.ID) })}, nil
}

func (h *snapshotHandlers) forkSandbox(ctx context.Context, in *forkIn) (*forkOut, error) {
	if _, err := api.Find(ctx, h.manager, in.ID); err != nil {
		return nil, err
	}
	made, err := h.manager.Snapshots().Fork(ctx, manager.ForkRequest{
		Sandbox: in.ID, Count: in.Body.Count, Labels: in.Body.Labels, Env: in.Body.Env, Secrets: in.Body.Secrets,
	})
	return &forkOut{wire.Page[sandpit.Sandbox]{Items: made}}, err
}

func (h *snapshotHandlers) compareFiles(ctx context.Context, in *diffIn) (*diffOut, error) {
	owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
	if err != nil {
		return nil, err
	}
	r := manager.DiffRequest{Owner: owner, Patch: in.Patch}
	if r.From, err = h.parseSide(ctx, in.From); err != nil {
		return nil, err
	}
	if r.To, err = h.parseSide(ctx, in.To); err != nil {
		return nil, err
	}
	d, err := h.manager.Snapshots().Diff(ctx, r)
	if err == nil {
		err = memory.AccountOf(ctx).Reserve(diffSize(d))
	}
	return &diffOut{d}, err
}

// diffSize is how many bytes of memory a comparison takes, with what is sent of it.
func diffSize(d sandpit.FileDiff) (size int64) {
	const each, copies = 400, 2
	for _, c := range d.Changes {
		size += each + copies*int64(len(c.Path)+len(c.Patch))
	}
	return size
}

// side reads what is to be compared.
func (h *snapshotHandlers) parseSide(ctx context.Context, text string) (manager.Side, error) {
	if text == "" {
		return manager.Side{}, nil
	}
	kind, name, _ := strings.Cut(text, ":")
	switch {
	case kind == "sandbox":
		_, err := api.Find(ctx, h.manager, sandpit.ID(name))
		return manager.Side{Sandbox: sandpit.ID(name)}, err
	case kind == "snapshot" && name != "":
		return manager.Side{Snapshot: name}, nil
	}
	return manager.Side{}, sandpit.Errorf(sandpit.Invalid, "compare %.100q: want sandbox:ID, or snapshot: and an ID or name", text)
}

// exportSnapshot registers the stream of a snapshot. Its headers are sent with its first
// bytes, so that what fails before is told; later the answer is broken off.
func (h *snapshotHandlers) registerExport(r *registrar) {
	op := newOperation(http.MethodGet, pathSnapshot+"/export", "exportSnapshot", "Read a snapshot as one stream, with all that it needs")
	op.Responses = map[string]*huma.Response{"200": {
		Description: "What importSnapshot takes. One that ends early is broken off.",
		Content:     map[string]*huma.MediaType{wire.ContentTypeSnapshot: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *snapshotIn) (*huma.StreamResponse, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err == nil {
			_, err = h.manager.Snapshots().Get(ctx, owner, in.Snapshot)
		}
		if err != nil {
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			req, w := humago.Unwrap(hc)
			out := &late{ResponseWriter: w}
			err := h.manager.Snapshots().Export(req.Context(), owner, in.Snapshot, out)
			switch {
			case err == nil:
			case !out.begun:
				api.WriteError(w, req, err)
			default: // the manager has told of it; the client must not take this for the end
				h.log.DebugContext(req.Context(), "api: snapshot export aborted", slog.Any("error", err))
				panic(http.ErrAbortHandler)
			}
		}}, nil
	})
}

// late sends headers with the first bytes.
type late struct {
	http.ResponseWriter

	begun bool
}

// Write implements io.Writer.
func (l *late) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.Header().Set("Content-Type", wire.ContentTypeSnapshot)
	}
	return l.ResponseWriter.Write(p)
}

type importIn struct {
	Name     string `query:"name" maxLength:"63" doc:"What it shall be called. Default: nothing."`
	Provider string `query:"provider" maxLength:"100" doc:"Who keeps it. Default: the server's own choice."`
	Owner    string `query:"owner" maxLength:"200" doc:"Whose it shall be. Default: the caller's own."`

	body io.Reader
}

// Resolve takes the body as it comes: it is too large to be kept.
func (i *importIn) Resolve(hc huma.Context) []error {
	i.body = hc.BodyReader()
	return nil
}

// importSnapshot registers what adds a snapshot from a stream.
func (h *snapshotHandlers) registerImport(r *registrar) {
	op := newOperation(http.MethodPost, pathSnapshots+"/import", "importSnapshot", "Add a snapshot that exportSnapshot wrote")
	op.DefaultStatus = http.StatusCreated
	op.Description = "If the client gives up before the end, nothing of it stays. This is for administrators: a snapshot " +
		"has the state of a sandbox's kernel, and one that was made up attacks the kernel from within."
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		wire.ContentTypeSnapshot: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	op.Responses = map[string]*huma.Response{}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *importIn) (*madeSnapshotOut, error) {
		p, err := api.PrincipalOf(ctx)
		if err == nil {
			err = h.access.requireAdmin(ctx, "import a snapshot")
		}
		var made sandpit.Snapshot
		if err == nil {
			made, err = h.manager.Snapshots().Import(ctx, manager.ImportRequest{Owner: cmp.Or(in.Owner, p.Owner), Name: in.Name, Provider: in.Provider}, in.body)
		}
		if err != nil {
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		return &madeSnapshotOut{pathSnapshots + "/" + string(made.ID), made}, nil
	})
}
