package e2b

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
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// template is one template.
type template struct {
	ID        string     `json:"templateID"`
	Build     string     `json:"buildID"`
	CPUs      int        `json:"cpuCount"`
	Memory    int64      `json:"memoryMB"`
	Disk      int64      `json:"diskSizeMB"`
	Public    bool       `json:"public"`
	Aliases   []string   `json:"aliases"`
	Names     []string   `json:"names"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
	CreatedBy *struct{}  `json:"createdBy"`
	Spawned   *time.Time `json:"lastSpawnedAt"` // unknown
	Count     int64      `json:"spawnCount"`
	Builds    int        `json:"buildCount"`
	Version   string     `json:"envdVersion"`
	Status    string     `json:"buildStatus"`
}

// build is one build of a template.
type build struct {
	ID         sandpit.BuildID `json:"buildID"`
	Status     string          `json:"status"`
	CPUs       int             `json:"cpuCount"`
	Memory     int64           `json:"memoryMB"`
	Disk       int64           `json:"diskSizeMB"`
	CreatedAt  time.Time       `json:"createdAt"`
	UpdatedAt  time.Time       `json:"updatedAt"`
	FinishedAt *time.Time      `json:"finishedAt,omitempty"`
	Version    string          `json:"envdVersion"`
}

// templateRef returns sandpit's reference of a template that a client calls NAME or NAME:TAG,
// with or without an owner.
func templateRef(client api.Principal, text string) string {
	ref := sandpit.ParseTemplateRef(text)
	if ref.Owner == client.Owner {
		ref.Owner = ""
	}
	ref.Name, ref.Tag = strings.ToLower(ref.Name), strings.ToLower(ref.Tag)
	return ref.String()
}

// templateHandlers serve templates and their tags.
type templateHandlers struct {
	manager  *manager.Manager
	resolver *templateResolver
	limits   sandpit.Resources // of templates that have none
}

// maxBuilds is how many builds of a template are listed.
const maxBuilds = 100

// listTemplates lists the templates that a client may use, first those of the configuration
// and the built-in ones.
func (h *templateHandlers) listTemplates(c *call) (int, any, error) {
	limits, list := h.limits, []template{}
	for _, name := range h.resolver.publicNames() {
		status, err := h.builtinStatus(c.r.Context(), name)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, template{
			ID: name, Build: name, CPUs: countCPUs(limits), Memory: limits.Memory >> 20, Disk: limits.Disk >> 20, Public: true,
			Aliases: []string{name}, Names: []string{name}, Version: guestVersion, Status: status, Builds: 1,
		})
	}
	all, err := h.manager.Templates().List(c.r.Context(), store.TemplateFilter{Owner: c.client.Owner})
	if err != nil {
		return 0, nil, err
	}
	for _, t := range all {
		one, err := h.toTemplate(c.r.Context(), t)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, one)
	}
	return http.StatusOK, list, nil
}

// builtinStatus returns the status of a template of the configuration or of a built-in one.
func (h *templateHandlers) builtinStatus(ctx context.Context, name string) (string, error) {
	if _, ok := h.resolver.configuredImage(name); ok || h.resolver.builtinName(name) == "" {
		return string(sandpit.BuildReady), nil
	}
	b, err := h.manager.Builtins().Get(ctx, name)
	if b.Status == sandpit.BuildFailed {
		return statusError, err
	}
	return string(b.Status), err
}

// toTemplate describes a template and its newest build.
func (h *templateHandlers) toTemplate(ctx context.Context, t sandpit.Template) (template, error) {
	out := template{
		ID: string(t.ID), Public: t.Public, Aliases: []string{t.Name}, Names: []string{t.Name}, CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(),
		Count: t.Spawned, Version: guestVersion, Status: string(sandpit.BuildWaiting),
	}
	builds, err := h.manager.Builds().List(ctx, t.Owner, string(t.ID), maxBuilds)
	if out.Builds = len(builds); err != nil || len(builds) == 0 {
		return out, err
	}
	newest := h.toBuild(builds[0])
	out.Build, out.CPUs, out.Memory, out.Disk, out.Status = string(newest.ID), newest.CPUs, newest.Memory, newest.Disk, newest.Status
	return out, nil
}

func (h *templateHandlers) toBuild(b sandpit.TemplateBuild) build {
	r := b.Resources
	limits := sandpit.Resources{CPUs: cmp.Or(r.CPUs, h.limits.CPUs), Memory: cmp.Or(r.Memory, h.limits.Memory), Disk: cmp.Or(r.Disk, h.limits.Disk)}
	out := build{
		ID: b.ID, Status: buildStatusOf(b), CPUs: countCPUs(limits), Memory: limits.Memory >> 20, Disk: limits.Disk >> 20,
		CreatedAt: b.CreatedAt.UTC(), UpdatedAt: b.CreatedAt.UTC(), Version: guestVersion,
	}
	if !b.StartedAt.IsZero() {
		out.UpdatedAt = b.StartedAt.UTC()
	}
	if !b.FinishedAt.IsZero() {
		out.UpdatedAt, out.FinishedAt = b.FinishedAt.UTC(), new(b.FinishedAt.UTC())
	}
	return out
}

// getTemplate describes a template and its builds.
func (h *templateHandlers) getTemplate(c *call) (int, any, error) {
	t, err := h.resolver.ownTemplate(c, c.r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	builds, err := h.manager.Builds().List(c.r.Context(), c.client.Owner, string(t.ID), maxBuilds)
	list := make([]build, len(builds))
	for i, b := range builds {
		list[i] = h.toBuild(b)
	}
	return http.StatusOK, map[string]any{
		"templateID": t.ID, "public": t.Public, "aliases": []string{t.Name}, "names": []string{t.Name}, "createdAt": t.CreatedAt.UTC(),
		"updatedAt": t.UpdatedAt.UTC(), "lastSpawnedAt": nil, "spawnCount": t.Spawned, "builds": list,
	}, err
}

// findTemplate reports whether a template exists.
func (h *templateHandlers) findTemplate(c *call) (int, any, error) {
	o, err := h.resolver.resolveName(c.r.Context(), c.client, c.r.PathValue("alias"))
	name, _, _ := strings.Cut(c.r.PathValue("alias"), ":")
	switch {
	case err != nil:
		return 0, nil, err
	case o.saved != nil:
		return http.StatusOK, map[string]any{"templateID": o.saved.ID, "public": false}, nil
	case o.found.ID != "":
		return http.StatusOK, map[string]any{"templateID": o.found.ID, "public": o.found.Public}, nil
	}
	return http.StatusOK, map[string]any{"templateID": name, "public": true}, nil
}

// setTemplate makes a template public or private.
func (h *templateHandlers) setTemplate(c *call) (int, any, error) {
	var in struct {
		Public *bool `json:"public"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	t, err := h.resolver.ownTemplate(c, c.r.PathValue("id"))
	if err == nil && in.Public != nil {
		t, err = h.manager.Templates().SetPublic(c.r.Context(), c.client.Owner, string(t.ID), *in.Public, c.client.Admin)
	}
	return http.StatusOK, map[string]any{"names": []string{t.Name}}, err
}

// deleteTemplate deletes a template or a snapshot. Templates of the configuration cannot be
// deleted.
func (h *templateHandlers) deleteTemplate(c *call) (int, any, error) {
	ctx := c.r.Context()
	o, err := h.resolver.resolveName(ctx, c.client, c.r.PathValue("id"))
	switch {
	case err != nil:
		return 0, nil, err
	case o.saved != nil:
		return http.StatusNoContent, nil, h.manager.Snapshots().Delete(ctx, c.client.Owner, string(o.saved.ID))
	case o.configured || o.builtin != "":
		return 0, nil, sandpit.Errorf(sandpit.PermissionDenied, "template %.100q belongs to the server's configuration", c.r.PathValue("id"))
	}
	t, err := h.resolver.ownTemplate(c, c.r.PathValue("id"))
	if err == nil {
		err = h.manager.Templates().Delete(ctx, c.client.Owner, string(t.ID))
	}
	return http.StatusNoContent, nil, err
}

// assignTags adds tags to the build that a tag names.
func (h *templateHandlers) assignTags(c *call) (int, any, error) {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	t, err := h.resolver.ownTemplate(c, in.Target)
	if err != nil {
		return 0, nil, err
	}
	if len(in.Tags) == 0 {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "tags are missing")
	}
	_, tag, _ := strings.Cut(templateRef(c.client, in.Target), ":")
	t, err = h.manager.Templates().Tag(c.r.Context(), c.client.Owner, string(t.ID)+":"+cmp.Or(tag, tagDefault), in.Tags)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, map[string]any{"buildID": t.Tags[in.Tags[0]], "tags": in.Tags}, nil
}

// removeTags removes tags from a template.
func (h *templateHandlers) removeTags(c *call) (int, any, error) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	t, err := h.resolver.ownTemplate(c, in.Name)
	if err == nil {
		err = h.manager.Templates().Untag(c.r.Context(), c.client.Owner, string(t.ID), in.Tags)
	}
	return http.StatusNoContent, nil, err
}

// tag is one tag of a template.
type tag struct {
	Tag       string          `json:"tag"`
	Build     sandpit.BuildID `json:"buildID"`
	CreatedAt time.Time       `json:"createdAt"`
}

// listTags lists the tags of a template.
func (h *templateHandlers) listTags(c *call) (int, any, error) {
	if c.r.PathValue("what") != "tags" { // the pattern of aliases excludes a more exact one
		return refuseUnknown(c)
	}
	t, err := h.resolver.ownTemplate(c, c.r.PathValue("id"))
	list := []tag{}
	for _, name := range slices.Sorted(maps.Keys(t.Tags)) {
		list = append(list, tag{Tag: name, Build: t.Tags[name], CreatedAt: t.UpdatedAt.UTC()})
	}
	return http.StatusOK, list, err
}
