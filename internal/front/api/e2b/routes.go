package e2b

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// route is one call.
type route struct {
	method, path string
	serve        handler
}

// routes are the calls that are answered.
func (s *Server) routes() []route {
	const sandbox = "/sandboxes/{id}"
	return []route{
		{http.MethodPost, "/sandboxes", s.creating(defaultTimeoutV1)},
		{http.MethodPost, "/v2/sandboxes", s.creating(defaultTimeout)},
		{http.MethodGet, "/sandboxes", s.listAll},
		{http.MethodGet, "/v2/sandboxes", s.list},
		{http.MethodGet, "/sandboxes/metrics", s.allMetrics},
		{http.MethodGet, sandbox, s.get},
		{http.MethodDelete, sandbox, s.kill},
		{http.MethodPost, sandbox + "/connect", s.connect},
		{http.MethodPost, "/v2" + sandbox + "/connect", s.connect},
		{http.MethodPost, sandbox + "/resume", s.resume},
		{http.MethodPost, sandbox + "/pause", s.pause},
		{http.MethodPost, sandbox + "/timeout", s.timeout},
		{http.MethodPost, sandbox + "/refreshes", s.refresh},
		{http.MethodPost, sandbox + "/fork", s.fork},
		{http.MethodPost, sandbox + "/snapshots", s.createSnapshot},
		{http.MethodGet, "/snapshots", s.listSnapshots},
		{http.MethodPut, sandbox + "/network", s.setNetwork},
		{http.MethodGet, sandbox + "/metrics", s.metrics},
		{http.MethodGet, sandbox + "/logs", s.logsV1},
		{http.MethodGet, "/v2" + sandbox + "/logs", s.logs},
		{http.MethodGet, "/templates", s.listTemplates},
		{http.MethodGet, "/v2/templates", s.listTemplates},
		{http.MethodGet, "/templates/{id}", s.getTemplate},
		{http.MethodPatch, "/templates/{id}", s.setTemplate},
		{http.MethodPatch, "/v2/templates/{id}", s.setTemplate},
		{http.MethodPost, "/templates/tags", s.assignTags},
		{http.MethodDelete, "/templates/tags", s.removeTags},
		{http.MethodGet, "/templates/{id}/{what}", s.listTags},
		{http.MethodPost, "/v3/templates", s.requestBuild},
		{http.MethodGet, "/templates/{id}/files/{hash}", s.linkUpload},
		{http.MethodPost, "/v2/templates/{id}/builds/{build}", s.startBuild},
		{http.MethodGet, "/templates/{id}/builds/{build}/status", s.buildStatus},
		{http.MethodGet, "/templates/{id}/builds/{build}/logs", s.buildLogs},
		{http.MethodGet, "/templates/aliases/{alias}", s.findTemplate},
		{http.MethodDelete, "/templates/{id}", s.deleteTemplate},
		{http.MethodGet, "/volumes", s.listVolumes},
		{http.MethodPost, "/volumes", s.createVolume},
		{http.MethodGet, "/volumes/{id}", s.getVolume},
		{http.MethodDelete, "/volumes/{id}", s.deleteVolume},
		{http.MethodGet, "/teams", s.teams},
		{http.MethodGet, "/teams/{id}/metrics", s.teamMetrics},
		{http.MethodGet, "/teams/{id}/metrics/max", s.maxTeamMetrics},
		{http.MethodGet, "/nodes", s.nodes},
		{http.MethodGet, "/nodes/{id}", s.getNode},
		{http.MethodGet, "/api-keys", s.listKeys},
		{http.MethodPost, "/api-keys", s.createKey},
		{http.MethodPatch, "/api-keys/{key}", s.renameKey},
		{http.MethodDelete, "/api-keys/{key}", s.deleteKey},
	}
}

// missing are calls of E2B's API that are not answered: clients are told so.
func missing() []route {
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

// prefixes are how the paths of E2B's API begin.
func prefixes() []string {
	return []string{
		"/sandboxes", "/snapshots", "/templates", "/teams", "/nodes", "/api-keys", "/access-tokens", "/volumes", "/volumecontent", "/secrets",
		"/v2", "/v3",
	}
}

// Is reports whether a path is one of E2B's API, so that errors are to look like its.
func Is(path string) bool {
	return slices.ContainsFunc(prefixes(), func(prefix string) bool {
		rest, ok := strings.CutPrefix(path, prefix)
		return ok && (rest == "" || rest[0] == '/')
	})
}

func notThere(c *call) (int, any, error) {
	return 0, nil, sandpit.Errorf(sandpit.Unsupported, "%s %s of E2B's API is not there in sandpit", c.r.Method, strings.TrimPrefix(c.r.Pattern, c.r.Method+" "))
}

func unknown(c *call) (int, any, error) {
	return 0, nil, sandpit.Errorf(sandpit.NotFound, "there is no %.20s %.200q", c.r.Method, c.r.URL.Path)
}
