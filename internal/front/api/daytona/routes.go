package daytona

import (
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// route is a call of the API.
type route struct {
	method, path string
	serve        handler
}

// textRoute is a call whose response is text.
type textRoute struct {
	method, path string
	serve        http.HandlerFunc
}

// newRoutes returns the calls that the server supports.
func (s *Server) newRoutes() []route {
	return append(s.sandboxRoutes(), s.otherRoutes()...)
}

// sandboxRoutes returns the calls on sandboxes.
func (s *Server) sandboxRoutes() []route {
	const box, port = "/sandbox/{sandbox}", "/sandbox/{sandbox}/ports/{port}"
	h := s.sandboxes
	return []route{
		{http.MethodPost, "/sandbox", h.createSandbox},
		{http.MethodGet, "/sandbox", h.listSandboxes},
		{http.MethodGet, "/sandbox/paginated", h.listPages},
		{http.MethodGet, "/sandbox/ssh-access/validate", s.ssh.validateAccess},
		{http.MethodGet, box, h.getSandbox},
		{http.MethodDelete, box, h.deleteSandbox},
		{http.MethodPost, box + "/start", h.startSandbox},
		{http.MethodPost, box + "/stop", h.stopSandbox},
		{http.MethodPost, box + "/pause", h.pauseSandbox},
		{http.MethodPost, box + "/archive", h.archiveSandbox},
		{http.MethodPost, box + "/recover", h.recoverSandbox},
		{http.MethodPost, box + "/resize", h.resizeSandbox},
		{http.MethodPost, box + "/fork", h.forkSandbox},
		{http.MethodPost, box + "/snapshot", h.saveSandbox},
		{http.MethodPost, box + "/autostop/{interval}", h.setInterval(func(n *intervals, m int64) { n.stop = m })},
		{http.MethodPost, box + "/autopause/{interval}", h.setInterval(func(n *intervals, m int64) { n.pause = m })},
		{http.MethodPost, box + "/autoarchive/{interval}", h.setInterval(func(n *intervals, m int64) { n.archive = archiveInterval(m) })},
		{http.MethodPost, box + "/autodelete/{interval}", h.setInterval(func(n *intervals, m int64) { n.delete = m })},
		{http.MethodPost, box + "/ttl/{interval}", h.setTTL},
		{http.MethodPut, box + "/labels", h.setLabels},
		{http.MethodPost, box + "/public/{public}", h.setPublic},
		{http.MethodPost, box + "/network-settings", h.setNetwork},
		{http.MethodPost, box + "/last-activity", h.recordActivity},
		{http.MethodGet, box + "/toolbox-proxy-url", h.getToolboxURL},
		{http.MethodGet, box + "/build-logs-url", s.getLogURL},
		{http.MethodPost, box + "/ssh-access", s.ssh.createAccess},
		{http.MethodDelete, box + "/ssh-access", s.ssh.deleteAccess},
		{http.MethodGet, box + "/signing-key", s.ports.getSigningKey(false)},
		{http.MethodPost, box + "/signing-key/rotate", s.ports.getSigningKey(true)},
		{http.MethodGet, port + "/preview-url", s.ports.getPreview},
		{http.MethodGet, port + "/signed-preview-url", s.ports.signPreview},
		{http.MethodPost, port + "/signed-preview-url/{token}/expire", s.ports.expirePreview},
	}
}

// otherRoutes returns the calls on what is no sandbox.
func (s *Server) otherRoutes() []route {
	return []route{
		{http.MethodGet, "/snapshots", s.snapshots.listSnapshots},
		{http.MethodPost, "/snapshots", s.snapshots.createSnapshot},
		{http.MethodGet, "/snapshots/{snapshot}", s.snapshots.getSnapshot},
		{http.MethodDelete, "/snapshots/{snapshot}", s.snapshots.deleteSnapshot},
		{http.MethodPost, "/snapshots/{snapshot}/activate", s.snapshots.activateSnapshot},
		{http.MethodGet, "/snapshots/{snapshot}/build-logs-url", s.getLogURL},
		{http.MethodGet, "/volumes", s.volumes.listVolumes},
		{http.MethodPost, "/volumes", s.volumes.createVolume},
		{http.MethodGet, "/volumes/{volume}", s.volumes.getVolume},
		{http.MethodGet, "/volumes/by-name/{name}", s.volumes.getByName},
		{http.MethodDelete, "/volumes/{volume}", s.volumes.deleteVolume},
		{http.MethodGet, "/regions", s.about.listRegions},
		{http.MethodGet, "/shared-regions", s.about.listRegions},
		{http.MethodGet, "/api-keys", s.keys.listKeys},
		{http.MethodPost, "/api-keys", s.keys.createKey},
		{http.MethodGet, "/api-keys/current", s.keys.getCurrentKey},
		{http.MethodGet, "/api-keys/{name}", s.keys.getKey},
		{http.MethodDelete, "/api-keys/{name}", s.keys.deleteKey},
		{http.MethodGet, "/object-storage/push-access", s.objects.getAccess},
	}
}

// publicRoutes returns the calls that need no key.
func (s *Server) publicRoutes() []route {
	return []route{
		{http.MethodGet, "/config", s.about.getConfig},
		{http.MethodGet, "/health", s.about.getHealth},
		{http.MethodGet, "/health/ready", s.about.getHealth},
	}
}

// textRoutes returns the calls whose responses are text.
func (s *Server) textRoutes() []textRoute {
	return []textRoute{
		{http.MethodGet, "/sandbox/{sandbox}/build-logs", s.serveLog},
		{http.MethodGet, "/snapshots/{snapshot}/build-logs", s.serveLog},
	}
}

// Public returns the paths that need no key. Clients of the events send their key in a message.
func Public() []string {
	return []string{Prefix + "/config", Prefix + "/health", Prefix + "/health/ready", PathEvents}
}

// missingRoutes returns calls of Daytona's API that sandpit does not have, so that clients get
// an error that says so.
func missingRoutes() []route {
	var all []route
	for _, line := range []string{
		"POST /sandbox/{sandbox}/backup", "PUT /sandbox/{sandbox}/secrets", "GET /sandbox/{sandbox}/secrets",
		"GET /sandbox/{sandbox}/ancestors", "GET /sandbox/{sandbox}/forks", "GET /sandbox/{sandbox}/parent",
		"GET /sandbox/{sandbox}/telemetry/{what}", "POST /snapshots/{snapshot}/deactivate",
		"GET /secret", "POST /secret", "GET /warm-pools", "POST /warm-pools", "GET /organizations", "GET /runners",
	} {
		method, path, _ := strings.Cut(line, " ")
		all = append(all, route{method: method, path: path})
	}
	return all
}

// Is reports whether a path belongs to Daytona's API, so that errors must have its format.
func Is(path string) bool {
	rest, ok := strings.CutPrefix(path, Prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// refuseMissing answers a call of Daytona's API that sandpit does not have.
func refuseMissing(c *call) (int, any, error) {
	return 0, nil, refuse(http.StatusNotImplemented, sandpit.Unsupported, "sandpit does not support %s %s of Daytona's API", c.r.Method, strings.TrimPrefix(c.r.Pattern, c.r.Method+" "))
}

// refuseUnknown answers a call that Daytona's API does not have.
func refuseUnknown(c *call) (int, any, error) {
	return 0, nil, sandpit.Errorf(sandpit.NotFound, "no such call: %.20s %.200q", c.r.Method, c.r.URL.Path)
}
