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

type createdSnapshotOut struct {
	Location string `header:"Location" doc:"The path of the snapshot."`
	Body     sandpit.Snapshot
}

type snapshotIn struct {
	Snapshot string `path:"snapshot" maxLength:"63" doc:"ID or name of the snapshot."`
	Owner    string `query:"owner" maxLength:"200" doc:"The owner; only administrators may name another owner. Default: the client's own."`
}

type snapshotOut struct {
	Body sandpit.Snapshot
}

type snapshotsIn struct {
	PageIn
	OwnerIn

	Sandbox sandpit.ID `query:"sandbox" maxLength:"20" doc:"The sandbox that was saved. Default: any."`
}

type snapshotsOut struct {
	Body wire.Page[sandpit.Snapshot]
}

type forkIn struct {
	SandboxPath

	Body wire.Fork
}

type forkOut struct {
	Body wire.Page[sandpit.Sandbox]
}

type rollbackIn struct {
	SandboxPath

	Body wire.Rollback
}

type diffIn struct {
	From  string `query:"from" maxLength:"100" doc:"sandbox:ID, or snapshot: and an ID or name. Default: the image of the other side."`
	To    string `query:"to" maxLength:"100" doc:"Like from."`
	Patch bool   `query:"patch" doc:"Include the differences of small text files."`
	Owner string `query:"owner" maxLength:"200" doc:"The owner of the snapshots; only administrators may name another owner. Default: the client's own."`
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

// addOperations adds the operations on snapshots.
func (h *snapshotHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodPost, pathSnapshots, "createSnapshot", "Create a snapshot of a sandbox, which keeps running")
	op.DefaultStatus = http.StatusCreated
	op.Description = `A new sandbox with the image "snapshot:" and the ID or name starts from the snapshot. The snapshot exists until it is deleted, even after its sandbox.`
	addOperation(r, op, h.createSnapshot)
	op = newOperation(http.MethodGet, pathSnapshots, "listSnapshots", "List snapshots")
	addOperation(r, op, h.listSnapshots)
	addOperation(r, newOperation(http.MethodGet, pathSnapshot, "getSnapshot", "Get a snapshot"), func(ctx context.Context, in *snapshotIn) (*snapshotOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err != nil {
			return nil, err
		}
		found, err := h.manager.Snapshots().Get(ctx, owner, in.Snapshot)
		return &snapshotOut{found}, err
	})
	op = newOperation(http.MethodDelete, pathSnapshot, "deleteSnapshot", "Delete a snapshot")
	op.Description = "Sandboxes that were created from it keep running. 409 while one is being created."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *snapshotIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Snapshots().Delete(ctx, owner, in.Snapshot)
	})
	op = newOperation(http.MethodPost, pathSandbox+"/fork", "forkSandbox", "Fork a sandbox, which keeps running")
	op.DefaultStatus = http.StatusCreated
	op.Description = "Creates all forks or none. If the client disconnects before the response, they are deleted."
	addOperation(r, op, h.forkSandbox)
	op = newOperation(http.MethodPost, pathSandbox+"/rollback", "rollbackSandbox", "Roll a sandbox back to one of its snapshots")
	op.DefaultStatus = http.StatusOK
	op.Description = "The sandbox runs afterwards. Its later changes are lost."
	addOperation(r, op, func(ctx context.Context, in *rollbackIn) (*sandboxOut, error) {
		return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
			return h.manager.Snapshots().RollBack(ctx, id, in.Body.Snapshot)
		})
	})
	op = newOperation(http.MethodGet, wire.Prefix+"/diff", "compareFiles", "Compare the files of sandboxes, snapshots and their image")
	op.Description = "Sandboxes must be running. Mounts are not compared."
	addOperation(r, op, h.compareFiles)
	h.registerExport(r)
	h.registerImport(r)
}

func (h *snapshotHandlers) createSnapshot(ctx context.Context, in *newSnapshotIn) (*createdSnapshotOut, error) {
	if _, err := api.Find(ctx, h.manager, in.Body.Sandbox); err != nil {
		return nil, err
	}
	made, err := h.manager.Snapshots().Create(ctx, in.Body.Sandbox, in.Body.Name)
	if err != nil {
		return nil, err
	}
	return &createdSnapshotOut{pathSnapshots + "/" + string(made.ID), made}, nil
}

func (h *snapshotHandlers) listSnapshots(ctx context.Context, in *snapshotsIn) (*snapshotsOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list snapshots of others")
	if err != nil {
		return nil, err
	}
	after, err := parseCursor[sandpit.SnapshotID](in.Cursor)
	if err != nil {
		return nil, err
	}
	f := store.SnapshotFilter{
		Owner: owner, All: all, Sandbox: in.Sandbox, After: after, Limit: in.Limit + 1,
	}
	list, err := h.manager.Snapshots().List(ctx, f)
	if err != nil {
		return nil, err
	}
	return &snapshotsOut{toPage(list, in.Limit, func(n sandpit.Snapshot) string { return string(n.ID) })}, nil
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
		err = memory.AccountOf(ctx).Reserve(diffMemory(d))
	}
	return &diffOut{d}, err
}

// diffMemory returns how many bytes of memory a comparison and its response take.
func diffMemory(d sandpit.FileDiff) (size int64) {
	const each, copies = 400, 2
	for _, c := range d.Changes {
		size += each + copies*int64(len(c.Path)+len(c.Patch))
	}
	return size
}

// parseSide reads one side of a comparison.
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

// registerExport adds the export of snapshots. Headers are sent with the first bytes, so
// that earlier errors become a problem; later errors cut the connection.
func (h *snapshotHandlers) registerExport(r *registrar) {
	op := newOperation(http.MethodGet, pathSnapshot+"/export", "exportSnapshot", "Export a snapshot as one stream with everything that it needs")
	op.Responses = map[string]*huma.Response{"200": {
		Description: "The input of importSnapshot. If the export fails, the connection is cut.",
		Content:     map[string]*huma.MediaType{wire.ContentTypeSnapshot: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *snapshotIn) (*huma.StreamResponse, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use snapshots of others")
		if err == nil {
			_, err = h.manager.Snapshots().Get(ctx, owner, in.Snapshot)
		}
		if err != nil {
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			req, w := humago.Unwrap(hc)
			out := &lateHeaderWriter{ResponseWriter: w}
			err := h.manager.Snapshots().Export(req.Context(), owner, in.Snapshot, out)
			switch {
			case err == nil:
			case !out.begun:
				api.WriteError(w, req, err)
			default: // the manager has reported it; the client must not take this for the end
				h.log.DebugContext(req.Context(), "api: snapshot export aborted", slog.Any("error", err))
				panic(http.ErrAbortHandler)
			}
		}}, nil
	})
}

// lateHeaderWriter sets the content type with the first bytes.
type lateHeaderWriter struct {
	http.ResponseWriter

	begun bool
}

// Write implements io.Writer.
func (l *lateHeaderWriter) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.Header().Set("Content-Type", wire.ContentTypeSnapshot)
	}
	return l.ResponseWriter.Write(p)
}

type importIn struct {
	Name     string `query:"name" maxLength:"63" doc:"Name of the snapshot. Default: none."`
	Provider string `query:"provider" maxLength:"100" doc:"The provider that stores the snapshot. Default: the server's."`
	Owner    string `query:"owner" maxLength:"200" doc:"The owner of the snapshot. Default: the client's own."`

	body io.Reader
}

// Resolve implements huma.Resolver. The body is too large to be held in memory.
func (i *importIn) Resolve(hc huma.Context) []error {
	i.body = hc.BodyReader()
	return nil
}

// registerImport adds the import of snapshots.
func (h *snapshotHandlers) registerImport(r *registrar) {
	op := newOperation(http.MethodPost, pathSnapshots+"/import", "importSnapshot", "Import a snapshot that exportSnapshot wrote")
	op.DefaultStatus = http.StatusCreated
	op.Description = "If the client disconnects before the end, nothing is kept. Only administrators may import: a snapshot " +
		"contains the state of a sandbox's kernel, and a forged one can attack the kernel."
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		wire.ContentTypeSnapshot: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	op.Responses = map[string]*huma.Response{}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *importIn) (*createdSnapshotOut, error) {
		p, err := api.PrincipalOf(ctx)
		if err == nil {
			err = h.access.requireAdmin(ctx, "import a snapshot")
		}
		var made sandpit.Snapshot
		if err == nil {
			made, err = h.manager.Snapshots().Import(ctx, manager.ImportRequest{Owner: cmp.Or(in.Owner, p.Owner), Name: in.Name, Provider: in.Provider}, in.body)
		}
		if err != nil {
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		return &createdSnapshotOut{pathSnapshots + "/" + string(made.ID), made}, nil
	})
}
