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
	Spawned   *time.Time `json:"lastSpawnedAt"` // not known
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

// templateRef is what a template is called here that a client calls NAME or NAME:TAG, with
// an owner before it or not.
func templateRef(who api.Principal, text string) string {
	ref := sandpit.ParseTemplateRef(text)
	if ref.Owner == who.Owner {
		ref.Owner = ""
	}
	ref.Name, ref.Tag = strings.ToLower(ref.Name), strings.ToLower(ref.Tag)
	return ref.String()
}

// ownTemplate returns a template of who asks. NotFound, also if it is another's.
func (s *Server) ownTemplate(c *call, ref string) (sandpit.Template, error) {
	t, err := s.o.Manager.Templates().Get(c.r.Context(), c.who.Owner, templateRef(c.who, ref))
	if sandpit.CodeOf(err) == sandpit.NotFound || err == nil && t.Owner != c.who.Owner {
		return t, sandpit.Errorf(sandpit.NotFound, "template %.100q not found", ref)
	}
	return t, err
}

// maxBuilds is how many builds of a template are told.
const maxBuilds = 100

// listTemplates lists the templates that a client may use: first those of the configuration
// and of the program.
func (s *Server) listTemplates(c *call) (int, any, error) {
	limits, list := s.o.Limits, []template{}
	for _, name := range s.names() {
		status, err := s.statusOf(c.r.Context(), name)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, template{
			ID: name, Build: name, CPUs: cpus(limits), Memory: limits.Memory >> 20, Disk: limits.Disk >> 20, Public: true,
			Aliases: []string{name}, Names: []string{name}, Version: guestVersion, Status: status, Builds: 1,
		})
	}
	all, err := s.o.Manager.Templates().List(c.r.Context(), store.TemplateFilter{Owner: c.who.Owner})
	if err != nil {
		return 0, nil, err
	}
	for _, t := range all {
		one, err := s.templateOf(c.r.Context(), t)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, one)
	}
	return http.StatusOK, list, nil
}

// statusOf returns the status of a template of the configuration or of the program.
func (s *Server) statusOf(ctx context.Context, name string) (string, error) {
	if _, ok := s.configured(name); ok || s.builtinName(name) == "" {
		return string(sandpit.BuildReady), nil
	}
	b, err := s.o.Manager.Builtins().Get(ctx, name)
	if b.Status == sandpit.BuildFailed {
		return statusError, err
	}
	return string(b.Status), err
}

// templateOf tells of a template of an owner's, and of its newest build.
func (s *Server) templateOf(ctx context.Context, t sandpit.Template) (template, error) {
	out := template{
		ID: string(t.ID), Public: t.Public, Aliases: []string{t.Name}, Names: []string{t.Name}, CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(),
		Count: t.Spawned, Version: guestVersion, Status: string(sandpit.BuildWaiting),
	}
	builds, err := s.o.Manager.Builds().List(ctx, t.Owner, string(t.ID), maxBuilds)
	if out.Builds = len(builds); err != nil || len(builds) == 0 {
		return out, err
	}
	newest := s.buildOf(builds[0])
	out.Build, out.CPUs, out.Memory, out.Disk, out.Status = string(newest.ID), newest.CPUs, newest.Memory, newest.Disk, newest.Status
	return out, nil
}

func (s *Server) buildOf(b sandpit.TemplateBuild) build {
	r := b.Resources
	limits := sandpit.Resources{CPUs: cmp.Or(r.CPUs, s.o.Limits.CPUs), Memory: cmp.Or(r.Memory, s.o.Limits.Memory), Disk: cmp.Or(r.Disk, s.o.Limits.Disk)}
	out := build{
		ID: b.ID, Status: statusOf(b), CPUs: cpus(limits), Memory: limits.Memory >> 20, Disk: limits.Disk >> 20,
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

// getTemplate tells of a template, and of its builds.
func (s *Server) getTemplate(c *call) (int, any, error) {
	t, err := s.ownTemplate(c, c.r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	builds, err := s.o.Manager.Builds().List(c.r.Context(), c.who.Owner, string(t.ID), maxBuilds)
	list := make([]build, len(builds))
	for i, b := range builds {
		list[i] = s.buildOf(b)
	}
	return http.StatusOK, map[string]any{
		"templateID": t.ID, "public": t.Public, "aliases": []string{t.Name}, "names": []string{t.Name}, "createdAt": t.CreatedAt.UTC(),
		"updatedAt": t.UpdatedAt.UTC(), "lastSpawnedAt": nil, "spawnCount": t.Spawned, "builds": list,
	}, err
}

// findTemplate tells whether there is a template.
func (s *Server) findTemplate(c *call) (int, any, error) {
	o, err := s.resolve(c.r.Context(), c.who, c.r.PathValue("alias"))
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

// isCached reports whether a name means a template of the image cache, which the
// administrator has built without the server.
func (s *Server) isCached(ctx context.Context, who api.Principal, name string) bool {
	if ref := sandpit.ParseTemplateRef(name); ref.Owner != "" || ref.Tag != "" || ref.IsID() || s.o.Cached == nil {
		return false
	}
	return s.o.Cached(ctx, who, sandpit.Image(sandpit.TemplatePrefix+name)) == nil
}

// setTemplate says whether others may make sandboxes of a template.
func (s *Server) setTemplate(c *call) (int, any, error) {
	var in struct {
		Public *bool `json:"public"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	t, err := s.ownTemplate(c, c.r.PathValue("id"))
	if err == nil && in.Public != nil {
		t, err = s.o.Manager.Templates().SetPublic(c.r.Context(), c.who.Owner, string(t.ID), *in.Public, c.who.Admin)
	}
	return http.StatusOK, map[string]any{"names": []string{t.Name}}, err
}

// deleteTemplate removes a template or a snapshot. What the configuration has for
// templates stays.
func (s *Server) deleteTemplate(c *call) (int, any, error) {
	ctx := c.r.Context()
	o, err := s.resolve(ctx, c.who, c.r.PathValue("id"))
	switch {
	case err != nil:
		return 0, nil, err
	case o.saved != nil:
		return http.StatusNoContent, nil, s.o.Manager.Snapshots().Delete(ctx, c.who.Owner, string(o.saved.ID))
	case o.configured || o.builtin != "":
		return 0, nil, sandpit.Errorf(sandpit.PermissionDenied, "template %.100q is one of the server's configuration", c.r.PathValue("id"))
	}
	t, err := s.ownTemplate(c, c.r.PathValue("id"))
	if err == nil {
		err = s.o.Manager.Templates().Delete(ctx, c.who.Owner, string(t.ID))
	}
	return http.StatusNoContent, nil, err
}

// assignTags has tags mean the build that another one means.
func (s *Server) assignTags(c *call) (int, any, error) {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	t, err := s.ownTemplate(c, in.Target)
	if err != nil {
		return 0, nil, err
	}
	if len(in.Tags) == 0 {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "tags are missing")
	}
	_, tag, _ := strings.Cut(templateRef(c.who, in.Target), ":")
	t, err = s.o.Manager.Templates().Tag(c.r.Context(), c.who.Owner, string(t.ID)+":"+cmp.Or(tag, tagDefault), in.Tags)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, map[string]any{"buildID": t.Tags[in.Tags[0]], "tags": in.Tags}, nil
}

// removeTags takes tags away from a template.
func (s *Server) removeTags(c *call) (int, any, error) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	t, err := s.ownTemplate(c, in.Name)
	if err == nil {
		err = s.o.Manager.Templates().Untag(c.r.Context(), c.who.Owner, string(t.ID), in.Tags)
	}
	return http.StatusNoContent, nil, err
}

// tag is one tag of a template.
type tag struct {
	Tag       string          `json:"tag"`
	Build     sandpit.BuildID `json:"buildID"`
	CreatedAt time.Time       `json:"createdAt"`
}

// listTags tells of the tags of a template.
func (s *Server) listTags(c *call) (int, any, error) {
	if c.r.PathValue("what") != "tags" { // a mux takes no pattern for them beside that of aliases
		return unknown(c)
	}
	t, err := s.ownTemplate(c, c.r.PathValue("id"))
	list := []tag{}
	for _, name := range slices.Sorted(maps.Keys(t.Tags)) {
		list = append(list, tag{Tag: name, Build: t.Tags[name], CreatedAt: t.UpdatedAt.UTC()})
	}
	return http.StatusOK, list, err
}
