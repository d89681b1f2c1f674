package daytona

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// snapshot is what sandboxes can start from: a template, or a saved sandbox.
type snapshot struct {
	ID           string      `json:"id"`
	Organization string      `json:"organizationId"`
	General      bool        `json:"general"`
	Name         string      `json:"name"`
	Image        string      `json:"imageName,omitempty"`
	State        string      `json:"state"`
	Size         *float64    `json:"size"`
	Entrypoint   []string    `json:"entrypoint"`
	CPU          float64     `json:"cpu"`
	GPU          int         `json:"gpu"`
	Memory       float64     `json:"mem"`
	Disk         float64     `json:"disk"`
	Error        *string     `json:"errorReason"`
	CreatedAt    time.Time   `json:"createdAt"`
	UpdatedAt    time.Time   `json:"updatedAt"`
	LastUsedAt   *time.Time  `json:"lastUsedAt"`
	Build        *buildInfo  `json:"buildInfo,omitempty"`
	Regions      []string    `json:"regionIds"`
	Ref          string      `json:"ref,omitempty"`
	Source       *sandpit.ID `json:"sourceSandboxId"`
	Class        string      `json:"sandboxClass"`
}

// The states of snapshots.
const (
	snapshotPending  = "pending"
	snapshotBuilding = "building"
	snapshotActive   = "active"
	snapshotFailed   = "build_failed"
)

// labelName is the label of a recipe with the client's name of a snapshot, if that is not the name
// of its template.
const labelName = "sandpit.daytona.name"

// templateName returns the name of the template that a client calls NAME or NAME:TAG. Each of them
// is a template, because clients delete them one by one.
func templateName(name string) string { return strings.ReplaceAll(name, ":", ".") }

// snapshotHandlers serve snapshots.
type snapshotHandlers struct {
	manager *manager.Manager
	builder *imageBuilder
	limits  sandpit.Resources // of sandboxes whose template has none
}

// setLimits sets the limits of the sandboxes of a snapshot.
func (h *snapshotHandlers) setLimits(out *snapshot, r sandpit.Resources) {
	out.CPU = cmp.Or(r.CPUs, h.limits.CPUs)
	out.Memory = float64(cmp.Or(r.Memory, h.limits.Memory)) / gibibyte
	out.Disk = float64(cmp.Or(r.Disk, h.limits.Disk)) / gibibyte
}

// fromSaved describes a saved sandbox.
func (h *snapshotHandlers) fromSaved(n sandpit.Snapshot) snapshot {
	out := snapshot{
		ID: string(n.ID), Organization: n.Owner, Name: cmp.Or(n.Name, string(n.ID)), Image: string(n.Spec.Image), State: snapshotActive,
		Size: new(float64(n.Size) / gibibyte), CreatedAt: n.CreatedAt.UTC(), UpdatedAt: n.CreatedAt.UTC(), Regions: []string{region}, Class: sandboxClass,
	}
	if n.Sandbox != "" {
		out.Source = &n.Sandbox
	}
	h.setLimits(&out, n.Spec.Resources)
	return out
}

// fromTemplate describes a template by its latest build.
func (h *snapshotHandlers) fromTemplate(ctx context.Context, t sandpit.Template) (snapshot, error) {
	out := snapshot{
		ID: string(t.ID), Organization: t.Owner, General: t.Shared, Name: t.Name, State: snapshotPending,
		CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(), Regions: []string{region}, Class: sandboxClass,
	}
	list, err := h.manager.Builds().List(ctx, t.Owner, string(t.ID), 1)
	if err != nil || len(list) == 0 {
		return out, err
	}
	b, err := h.manager.Builds().Get(ctx, t.Owner, list[0].ID)
	if err != nil {
		return out, err
	}
	out.Name = cmp.Or(b.Recipe.Labels[labelName], out.Name)
	out.Image, out.Entrypoint, out.Ref = string(b.Recipe.From), b.Recipe.Entrypoint, string(b.ID)
	h.setLimits(&out, b.Resources)
	out.Build = &buildInfo{CreatedAt: b.CreatedAt.UTC(), UpdatedAt: b.CreatedAt.UTC(), SnapshotRef: string(b.ID)}
	switch b.Status {
	case sandpit.BuildBuilding:
		out.State = snapshotBuilding
	case sandpit.BuildReady:
		out.State, out.Size = snapshotActive, new(float64(b.Size)/gibibyte)
	case sandpit.BuildFailed:
		out.State, out.Error = snapshotFailed, new(buildFailure(b))
	default:
	}
	return out, nil
}

// found is what the ID or name in the path means: one of the two.
type found struct {
	saved    *sandpit.Snapshot
	template *sandpit.Template
}

// findSnapshot returns the snapshot or template in the path, by ID or name. NotFound: no such
// snapshot, or it belongs to another owner.
func (h *snapshotHandlers) findSnapshot(c *call) (found, error) {
	ctx, text := c.r.Context(), c.r.PathValue("snapshot")
	saved, err := h.manager.Snapshots().Get(ctx, c.client.Owner, text)
	if err == nil {
		return found{saved: &saved}, nil
	}
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return found{}, err
	}
	t, err := h.manager.Templates().Get(ctx, c.client.Owner, templateName(text))
	code := sandpit.CodeOf(err)
	if code == sandpit.NotFound || code == sandpit.Invalid || err == nil && t.Owner != c.client.Owner {
		return found{}, newSnapshotNotFound(text)
	}
	return found{template: &t}, err
}

// describe describes what was found.
func (h *snapshotHandlers) describe(ctx context.Context, f found) (snapshot, error) {
	if f.saved != nil {
		return h.fromSaved(*f.saved), nil
	}
	return h.fromTemplate(ctx, *f.template)
}

func (h *snapshotHandlers) getSnapshot(c *call) (int, any, error) {
	f, err := h.findSnapshot(c)
	if err != nil {
		return 0, nil, err
	}
	out, err := h.describe(c.r.Context(), f)
	return http.StatusOK, out, err
}

// activateSnapshot returns a snapshot, all of which are active once they are built.
func (h *snapshotHandlers) activateSnapshot(c *call) (int, any, error) {
	f, err := h.findSnapshot(c)
	if err != nil {
		return 0, nil, err
	}
	out, err := h.describe(c.r.Context(), f)
	if err == nil && out.State != snapshotActive {
		err = refuse(http.StatusBadRequest, sandpit.Conflict, "Snapshot %.100s cannot be activated: it is %s", out.Name, out.State)
	}
	return http.StatusOK, out, err
}

func (h *snapshotHandlers) deleteSnapshot(c *call) (int, any, error) {
	f, err := h.findSnapshot(c)
	switch {
	case err != nil:
		return 0, nil, err
	case f.saved != nil:
		err = h.manager.Snapshots().Delete(c.r.Context(), c.client.Owner, string(f.saved.ID))
	default:
		err = h.manager.Templates().Delete(c.r.Context(), c.client.Owner, string(f.template.ID))
	}
	return http.StatusOK, nil, err
}

// listSnapshots lists snapshots by numbered pages, the latest first.
func (h *snapshotHandlers) listSnapshots(c *call) (int, any, error) {
	query := c.r.URL.Query()
	limit, err := parseNumber(query, "limit", defaultPage, maxPage)
	if err != nil {
		return 0, nil, err
	}
	number, err := parseNumber(query, "page", 1, 1<<20)
	if err != nil {
		return 0, nil, err
	}
	all, err := h.ownSnapshots(c, query.Get("name"), sandpit.ID(query.Get("sourceSandboxId")))
	if err != nil {
		return 0, nil, err
	}
	if err := sortSnapshots(all, cmp.Or(query.Get("sort"), sortCreated), cmp.Or(query.Get("order"), "desc")); err != nil {
		return 0, nil, err
	}
	pages := toNumberedPage(all, number, limit)
	out := numberedPage[snapshot]{Items: []snapshot{}, Total: pages.Total, Page: pages.Page, TotalPages: pages.TotalPages}
	for _, one := range pages.Items {
		described, err := h.describe(c.r.Context(), one.found)
		if err != nil {
			return 0, nil, err
		}
		out.Items = append(out.Items, described)
	}
	return http.StatusOK, out, nil
}

// listedSnapshot is a snapshot or template of a list, before it is described.
type listedSnapshot struct {
	found

	name    string
	created time.Time
}

// ownSnapshots returns all snapshots and templates of the client's owner whose name contains a
// text and that, unless it is "", were taken of a sandbox.
func (h *snapshotHandlers) ownSnapshots(c *call, name string, sandbox sandpit.ID) (all []listedSnapshot, err error) {
	ctx := c.r.Context()
	saved, err := h.manager.Snapshots().List(ctx, store.SnapshotFilter{Owner: c.client.Owner, Sandbox: sandbox})
	if err != nil {
		return nil, err
	}
	for _, n := range saved {
		all = append(all, listedSnapshot{found{saved: &n}, cmp.Or(n.Name, string(n.ID)), n.CreatedAt})
	}
	if sandbox == "" {
		templates, err := h.manager.Templates().List(ctx, store.TemplateFilter{Owner: c.client.Owner})
		if err != nil {
			return nil, err
		}
		for _, t := range templates {
			all = append(all, listedSnapshot{found{template: &t}, t.Name, t.CreatedAt})
		}
	}
	return slices.DeleteFunc(all, func(s listedSnapshot) bool {
		return !strings.Contains(s.name, name) && !strings.Contains(s.name, templateName(name))
	}), nil
}

// sortSnapshots sorts a list by name or time.
func sortSnapshots(all []listedSnapshot, field, order string) error {
	if !slices.Contains([]string{sortName, sortCreated, "lastUsedAt", "state"}, field) || order != "asc" && order != "desc" {
		return sandpit.Errorf(sandpit.Invalid, "sort %.40q, order %.40q: want name or createdAt, and asc or desc", field, order)
	}
	slices.SortFunc(all, func(a, b listedSnapshot) int {
		by := a.created.Compare(b.created)
		if field == sortName {
			by = 0
		}
		by = cmp.Or(by, cmp.Compare(a.name, b.name))
		if order == "desc" {
			return -by
		}
		return by
	})
	return nil
}

// newSnapshot is a request for a snapshot.
type newSnapshot struct {
	Name       string        `json:"name"`
	Image      string        `json:"imageName"`
	Build      *newBuildInfo `json:"buildInfo"`
	Entrypoint []string      `json:"entrypoint"`
	CPU        float64       `json:"cpu"`
	GPU        float64       `json:"gpu"`
	Memory     float64       `json:"memory"`
	Disk       float64       `json:"disk"`
	Region     string        `json:"regionId"`
}

// toRecipe converts a request.
func (in newSnapshot) toRecipe(b *imageBuilder) (r sandpit.Recipe, err error) {
	switch {
	case (in.Build == nil) == (in.Image == ""):
		return r, sandpit.Errorf(sandpit.Invalid, "want one of imageName and buildInfo")
	case in.GPU != 0:
		return r, refuse(http.StatusBadRequest, sandpit.Unsupported, "gpu: this server does not support it")
	case !slices.Contains(targets, in.Region):
		return r, sandpit.Errorf(sandpit.NotFound, "Region not found: %.100q", in.Region)
	case in.Build != nil:
		r, err = b.parseDockerfile(*in.Build)
	default:
		r.From = sandpit.Image(in.Image)
	}
	if err != nil {
		return r, err
	}
	if len(in.Entrypoint) > 0 {
		r.Entrypoint = in.Entrypoint
	}
	r.Resources, err = toResources(in.CPU, in.Memory, in.Disk)
	return r, err
}

// createSnapshot starts the build of a template, and responds before it ends.
func (h *snapshotHandlers) createSnapshot(c *call) (int, any, error) {
	var in newSnapshot
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	recipe, err := in.toRecipe(h.builder)
	if err != nil {
		return 0, nil, err
	}
	ctx := c.r.Context()
	name := templateName(in.Name)
	if existing, err := h.builder.findBuild(ctx, c.client, name); err != nil {
		return 0, nil, err
	} else if existing.ID != "" {
		return 0, nil, sandpit.Errorf(sandpit.AlreadyExists, "Snapshot with name %.100q already exists", in.Name)
	}
	if name != in.Name {
		recipe.Labels = maps.Clone(recipe.Labels)
		if recipe.Labels == nil {
			recipe.Labels = make(map[string]string)
		}
		recipe.Labels[labelName] = in.Name
	}
	request := manager.TemplateRequest{Owner: c.client.Owner, Name: name, Resources: recipe.Resources}
	var hashes []string
	if in.Build != nil {
		hashes = in.Build.Hashes
	}
	if err := h.builder.checkFiles(c.client, hashes); err != nil {
		return 0, nil, err
	}
	build, err := h.builder.startBuild(ctx, c.client, request, recipe, hashes)
	if err != nil {
		return 0, nil, describeQuota(err)
	}
	t, err := h.manager.Templates().Get(ctx, c.client.Owner, string(build.Template))
	if err != nil {
		return 0, nil, err
	}
	out, err := h.fromTemplate(ctx, t)
	return http.StatusOK, out, err
}
