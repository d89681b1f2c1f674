package e2b

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// The limits of sandboxes of a template whose client names none.
const (
	defaultCPUs   = 2
	defaultMemory = 1024 // MiB
)

// maxBuildLogs is the maximum number of log entries in a response.
const maxBuildLogs = 100

// logEntry is an entry of the log of a build.
type logEntry struct {
	At      time.Time `json:"timestamp"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Step    string    `json:"step,omitempty"`
}

// buildReason is why a build failed.
type buildReason struct {
	Message string     `json:"message"`
	Step    string     `json:"step,omitempty"`
	Logs    []logEntry `json:"logEntries"`
}

// buildStatus is the status of a build and a part of its log.
type buildStatus struct {
	Build    sandpit.BuildID    `json:"buildID"`
	Template sandpit.TemplateID `json:"templateID"`
	Status   string             `json:"status"`
	Entries  []logEntry         `json:"logEntries"`
	Logs     []string           `json:"logs"`
	Reason   *buildReason       `json:"reason,omitempty"`
}

// buildHandlers serve builds of templates.
type buildHandlers struct {
	manager  *manager.Manager
	resolver *templateResolver
	recipes  recipeReader
	uploads  *uploads.Store
	links    *linkSigner
	memory   *memory.Budget
}

// createBuild creates a build, and its template if it does not exist. The build waits until it
// is started.
func (h *buildHandlers) createBuild(c *call) (int, any, error) {
	var in struct {
		Name   string   `json:"name"`
		Alias  string   `json:"alias"`
		Tags   []string `json:"tags"`
		CPUs   int      `json:"cpuCount"`
		Memory int64    `json:"memoryMB"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if in.CPUs < 0 || in.CPUs > 1024 || in.Memory < 0 || in.Memory > 1<<30 {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "cpuCount %d, memoryMB %d: out of bounds", in.CPUs, in.Memory)
	}
	name, tag, tagged := strings.Cut(templateRef(c.client, cmp.Or(in.Name, in.Alias)), ":")
	if tagged {
		in.Tags = append(in.Tags, tag)
	}
	t, b, err := h.manager.Templates().Create(c.r.Context(), manager.TemplateRequest{
		Owner: c.client.Owner, Name: name, Tags: in.Tags,
		Resources: sandpit.Resources{CPUs: float64(cmp.Or(in.CPUs, defaultCPUs)), Memory: cmp.Or(in.Memory, defaultMemory) << 20},
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, map[string]any{
		"templateID": t.ID, "buildID": b.ID, "public": t.Public, "names": []string{t.Name}, "aliases": []string{t.Name}, "tags": b.Tags,
	}, nil
}

// linkUpload returns the URL for the files of a step, and whether the server already has them.
func (h *buildHandlers) linkUpload(c *call) (int, any, error) {
	if _, err := h.resolver.ownTemplate(c, c.r.PathValue("id")); err != nil {
		return 0, nil, err
	}
	hash := c.r.PathValue("hash")
	if !uploads.IsHash(hash) {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "hash %.100q: want 32 to 128 hexadecimal digits", hash)
	}
	scheme := "http"
	if c.r.TLS != nil || c.r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	address := scheme + "://" + c.r.Host + PathUpload + "?" + h.links.signLink(c.client, hash, time.Now().Add(uploads.UploadTime))
	return http.StatusCreated, map[string]any{"present": h.uploads.HasArchive(uploads.Name{Owner: c.client.Owner, Hash: hash}), "url": address}, nil
}

// startBuild starts a build.
func (h *buildHandlers) startBuild(c *call) (int, any, error) {
	var in newBuild
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findBuild(c)
	if err != nil {
		return 0, nil, err
	}
	access, err := in.Login.toRegistryLogin()
	if err != nil {
		return 0, nil, err
	}
	base, err := h.recipes.findBase(c.r.Context(), c.client, in)
	if err != nil {
		return 0, nil, err
	}
	planned, err := h.recipes.planRecipe(c.client, in, base)
	if err != nil {
		return 0, nil, err
	}
	// The request stays in memory while the build waits for its turn.
	waiting := h.memory.OpenSession(c.client.Owner)
	if err := waiting.Reserve(api.BodyCost * c.size); err != nil {
		waiting.Close()
		return 0, nil, err
	}
	files, err := h.uploads.OpenFiles(c.client.Owner)
	if err != nil {
		waiting.Close()
		return 0, nil, err
	}
	release := func() {
		files.Remove()
		waiting.Close()
	}
	return http.StatusAccepted, map[string]any{}, h.manager.Builds().Start(c.r.Context(), manager.BuildRequest{
		Owner: c.client.Owner, Build: b.ID, Recipe: planned, Files: files.Dir(), Release: release, Login: access, Fresh: in.Force,
		Admin: c.client.Admin, Configured: base.configured,
		Prepare: func(ctx context.Context) ([]sandpit.RecipeStep, map[string]string, error) {
			made, err := h.recipes.readRecipe(ctx, c.client, in, base, files)
			return made.Steps, made.Labels, err
		},
	})
}

// findBuild returns the build in the path. NotFound.
func (h *buildHandlers) findBuild(c *call) (sandpit.TemplateBuild, error) {
	b, err := h.manager.Builds().Get(c.r.Context(), c.client.Owner, sandpit.BuildID(c.r.PathValue("build")))
	if err == nil && c.r.PathValue("id") != string(b.Template) {
		t, err := h.resolver.ownTemplate(c, c.r.PathValue("id"))
		if err != nil {
			return b, err
		}
		if t.ID != b.Template {
			return b, sandpit.Errorf(sandpit.NotFound, "template %s has no build %s", t.ID, b.ID)
		}
	}
	return b, err
}

// getStatus returns the status of a build and a part of its log.
func (h *buildHandlers) getStatus(c *call) (int, any, error) {
	query := c.r.URL.Query()
	offset, err := parseNumber(query, "logsOffset", 0, 0, 1<<30)
	if err != nil {
		return 0, nil, err
	}
	limit, err := parseNumber(query, "limit", maxBuildLogs, 0, maxBuildLogs)
	if err != nil {
		return 0, nil, err
	}
	b, err := h.findBuild(c)
	if err != nil {
		return 0, nil, err
	}
	out := buildStatus{Build: b.ID, Template: b.Template, Status: buildStatusOf(b), Logs: []string{}}
	if out.Entries, err = h.readLog(c.r.Context(), c.client.Owner, b, int64(offset), limit); err != nil {
		return 0, nil, err
	}
	if b.Status == sandpit.BuildFailed {
		out.Reason, err = h.failureReason(c.r.Context(), c.client.Owner, b)
	}
	return http.StatusOK, out, err
}

// getLogs returns a part of the log of a build.
func (h *buildHandlers) getLogs(c *call) (int, any, error) {
	limit, err := parseNumber(c.r.URL.Query(), "limit", maxBuildLogs, 1, maxBuildLogs)
	if err != nil {
		return 0, nil, err
	}
	b, err := h.findBuild(c)
	if err != nil {
		return 0, nil, err
	}
	list, err := h.readLog(c.r.Context(), c.client.Owner, b, 0, limit)
	return http.StatusOK, map[string]any{"logs": list}, err
}

func (h *buildHandlers) readLog(ctx context.Context, owner string, b sandpit.TemplateBuild, after int64, limit int) ([]logEntry, error) {
	list := []logEntry{}
	if limit == 0 {
		return list, nil
	}
	entries, err := h.manager.Builds().Log(ctx, owner, b.ID, after, limit)
	for _, e := range entries {
		one := logEntry{At: e.At, Level: "info", Message: e.Text, Step: stepOf(b, e.Step)}
		if e.Error {
			one.Level = "error"
		}
		list = append(list, one)
	}
	return list, err
}

// statusError is E2B's status of a failed build.
const statusError = "error"

// The names of steps that the client has not written.
const (
	stepBase     = "base"
	stepFinalize = "finalize"
)

// stepOf returns the client's name of a step of a recipe. The number 0 stands for what follows
// all steps.
func stepOf(b sandpit.TemplateBuild, number int) string {
	belongs := strings.Split(b.Recipe.Labels[labelSteps], ",")
	switch {
	case number == 0 && b.Image != "":
		return stepFinalize
	case number < 1 || number > len(belongs) || belongs[number-1] == "0" || belongs[number-1] == "":
		return stepBase
	}
	return belongs[number-1]
}

// failureReason returns why a build failed, in the words of E2B that clients check.
func (h *buildHandlers) failureReason(ctx context.Context, owner string, b sandpit.TemplateBuild) (*buildReason, error) {
	out := &buildReason{Message: b.Reason.Message, Step: stepBase, Logs: []logEntry{}}
	last, err := h.lastEntry(ctx, owner, b)
	if err != nil || last.Text == "" {
		return out, err
	}
	out.Step = stepOf(b, last.Step)
	if last.Step < 1 || last.Step > len(b.Recipe.Steps) {
		return out, nil
	}
	step := b.Recipe.Steps[last.Step-1]
	if len(step.Run) != 3 || step.Run[0] != bashArgs("")[0] {
		return out, nil
	}
	failed := "failed to run command '" + step.Run[2] + "': "
	out.Message = failed + b.Reason.Message
	if unknown := "invalid username: '" + step.RunUser + "'"; strings.Contains(b.Reason.Message, unknown) { // the guest's words
		out.Message = failed + "command failed: unauthenticated: " + unknown
	}
	return out, nil
}

// lastEntry returns the last entry of the log of a build.
func (h *buildHandlers) lastEntry(ctx context.Context, owner string, b sandpit.TemplateBuild) (last sandpit.BuildLog, err error) {
	for {
		entries, err := h.manager.Builds().Log(ctx, owner, b.ID, last.Seq, 10*maxBuildLogs)
		if err != nil || len(entries) == 0 {
			return last, err
		}
		last = entries[len(entries)-1]
	}
}

func buildStatusOf(b sandpit.TemplateBuild) string {
	if b.Status == sandpit.BuildFailed {
		return statusError
	}
	return string(b.Status)
}
