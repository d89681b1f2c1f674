package e2b

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// route is a call of the API.
type route struct {
	method, path string
	serve        handler
}

// newRoutes returns the calls that the server supports.
func (s *Server) newRoutes() []route {
	const sandbox = "/sandboxes/{id}"
	return []route{
		{http.MethodPost, "/sandboxes", s.sandboxes.handleCreate(defaultTimeoutV1)},
		{http.MethodPost, "/v2/sandboxes", s.sandboxes.handleCreate(defaultTimeout)},
		{http.MethodGet, "/sandboxes", s.sandboxes.listRunning},
		{http.MethodGet, "/v2/sandboxes", s.sandboxes.listSandboxes},
		{http.MethodGet, "/sandboxes/metrics", s.metrics.listMetrics},
		{http.MethodGet, sandbox, s.sandboxes.getSandbox},
		{http.MethodDelete, sandbox, s.sandboxes.deleteSandbox},
		{http.MethodPost, sandbox + "/connect", s.sandboxes.connectSandbox},
		{http.MethodPost, "/v2" + sandbox + "/connect", s.sandboxes.connectSandbox},
		{http.MethodPost, sandbox + "/resume", s.sandboxes.resumeSandbox},
		{http.MethodPost, sandbox + "/pause", s.sandboxes.pauseSandbox},
		{http.MethodPost, sandbox + "/timeout", s.sandboxes.setTimeout},
		{http.MethodPost, sandbox + "/refreshes", s.sandboxes.extendTimeout},
		{http.MethodPost, sandbox + "/fork", s.snapshots.forkSandbox},
		{http.MethodPost, sandbox + "/snapshots", s.snapshots.createSnapshot},
		{http.MethodGet, "/snapshots", s.snapshots.listSnapshots},
		{http.MethodPut, sandbox + "/network", s.sandboxes.setNetwork},
		{http.MethodGet, sandbox + "/metrics", s.metrics.getMetrics},
		{http.MethodGet, sandbox + "/logs", s.logs.getLogsV1},
		{http.MethodGet, "/v2" + sandbox + "/logs", s.logs.getLogs},
		{http.MethodGet, "/templates", s.templates.listTemplates},
		{http.MethodGet, "/v2/templates", s.templates.listTemplates},
		{http.MethodGet, "/templates/{id}", s.templates.getTemplate},
		{http.MethodPatch, "/templates/{id}", s.templates.setTemplate},
		{http.MethodPatch, "/v2/templates/{id}", s.templates.setTemplate},
		{http.MethodPost, "/templates/tags", s.templates.assignTags},
		{http.MethodDelete, "/templates/tags", s.templates.removeTags},
		{http.MethodGet, "/templates/{id}/{what}", s.templates.listTags},
		{http.MethodPost, "/v3/templates", s.builds.createBuild},
		{http.MethodGet, "/templates/{id}/files/{hash}", s.builds.linkUpload},
		{http.MethodPost, "/v2/templates/{id}/builds/{build}", s.builds.startBuild},
		{http.MethodGet, "/templates/{id}/builds/{build}/status", s.builds.getStatus},
		{http.MethodGet, "/templates/{id}/builds/{build}/logs", s.builds.getLogs},
		{http.MethodGet, "/templates/aliases/{alias}", s.templates.findTemplate},
		{http.MethodDelete, "/templates/{id}", s.templates.deleteTemplate},
		{http.MethodGet, "/volumes", s.volumes.listVolumes},
		{http.MethodPost, "/volumes", s.volumes.createVolume},
		{http.MethodGet, "/volumes/{id}", s.volumes.getVolume},
		{http.MethodDelete, "/volumes/{id}", s.volumes.deleteVolume},
		{http.MethodGet, "/teams", s.teams.listTeams},
		{http.MethodGet, "/teams/{id}/metrics", s.teams.getMetrics},
		{http.MethodGet, "/teams/{id}/metrics/max", s.teams.getMaximum},
		{http.MethodGet, "/nodes", s.nodes.listNodes},
		{http.MethodGet, "/nodes/{id}", s.nodes.getNode},
		{http.MethodGet, "/api-keys", s.keys.listKeys},
		{http.MethodPost, "/api-keys", s.keys.createKey},
		{http.MethodPatch, "/api-keys/{key}", s.keys.renameKey},
		{http.MethodDelete, "/api-keys/{key}", s.keys.deleteKey},
	}
}

// missingRoutes returns calls of E2B's API that sandpit does not have, so that clients get an
// error that says so.
func missingRoutes() []route {
	var all []route
	for _, line := range []string{
		"POST /templates", "POST /templates/{id}", "POST /templates/{id}/builds/{build}", "POST /v2/templates",
		"POST /nodes/{id}", "POST /access-tokens", "DELETE /access-tokens/{id}",
		"GET /volumecontent/{id}/{what}", "POST /volumecontent/{id}/{what}", "PUT /volumecontent/{id}/{what}",
		"PATCH /volumecontent/{id}/{what}", "DELETE /volumecontent/{id}/{what}",
		"GET /secrets", "POST /secrets", "GET /secrets/{id}", "POST /secrets/{id}", "DELETE /secrets/{id}",
	} {
		method, path, _ := strings.Cut(line, " ")
		all = append(all, route{method: method, path: path})
	}
	return all
}

// pathPrefixes returns the first parts of the paths of E2B's API.
func pathPrefixes() []string {
	return []string{
		"/sandboxes", "/snapshots", "/templates", "/teams", "/nodes", "/api-keys", "/access-tokens", "/volumes", "/volumecontent", "/secrets",
		"/v2", "/v3",
	}
}

// Is reports whether a path belongs to E2B's API, so that errors must have its format.
func Is(path string) bool {
	return slices.ContainsFunc(pathPrefixes(), func(prefix string) bool {
		rest, ok := strings.CutPrefix(path, prefix)
		return ok && (rest == "" || rest[0] == '/')
	})
}

// refuseMissing answers a call of E2B's API that sandpit does not have.
func refuseMissing(c *call) (int, any, error) {
	return 0, nil, sandpit.Errorf(sandpit.Unsupported, "sandpit does not support %s %s of E2B's API", c.r.Method, strings.TrimPrefix(c.r.Pattern, c.r.Method+" "))
}

// refuseUnknown answers a call that E2B's API does not have.
func refuseUnknown(c *call) (int, any, error) {
	return 0, nil, sandpit.Errorf(sandpit.NotFound, "no such call: %.20s %.200q", c.r.Method, c.r.URL.Path)
}
