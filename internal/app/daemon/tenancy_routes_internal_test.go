package daemon

import "strings"

func publicRoutes() map[string]attempt {
	return merge(
		repeat(attempt{rule: own}, "GET /healthz", "GET /readyz", "GET /version", "GET /docs", "GET /openapi.json", "GET /openapi-3.0.json"),
		repeat(attempt{rule: administrators}, "GET /metrics"),
	)
}

// nativeSandboxRoutes are those of the sandbox as a whole.
func nativeSandboxRoutes() map[string]attempt {
	const box = " /v1/sandboxes/{id}"
	lines := repeat(attempt{rule: foreign},
		"GET"+box, "DELETE"+box, "GET"+box+"/network", "GET"+box+"/network/log", "GET"+box+"/ports", "GET"+box+"/stats",
		"POST"+box+"/archive", "POST"+box+"/checkpoint", "POST"+box+"/pause", "POST"+box+"/restore", "POST"+box+"/resume", "POST"+box+"/start", "POST"+box+"/stop",
		"DELETE"+box+"/ports/{port}", "POST"+box+"/tokens/revoke",
	)
	return merge(lines, map[string]attempt{
		"GET /v1/sandboxes":                                {rule: own},
		"POST /v1/sandboxes":                               {rule: reference, body: `{"spec": {"image": "{image}"}}`},
		"POST" + box + "/fork":                             {body: `{}`},
		"POST" + box + "/rollback":                         {body: `{"snapshot": "{snapshot}"}`},
		"POST" + box + "/resize":                           {body: `{"cpus": 2}`},
		"PUT" + box + "/name":                              {body: `{"name": "canary"}`},
		"PUT" + box + "/labels":                            {body: `{"labels": {"canary": "alice"}}`},
		"PUT" + box + "/lease":                             {body: `{"action": "kill", "timeout_seconds": 60}`},
		"PUT" + box + "/policy":                            {body: `{"idle_action": "kill", "idle_timeout_seconds": 1}`},
		"PUT" + box + "/network":                           {body: `{}`},
		"GET" + box + "/network/test":                      {query: "target=example.com:443"},
		"PUT" + box + "/ports/{port}":                      {body: `{"public": true}`},
		"POST" + box + "/ports/{port}/ticket":              {body: `{}`},
		"POST" + box + "/ports/{port}/url":                 {body: `{}`},
		"POST" + box + "/ssh":                              {body: `{}`},
		"POST" + box + "/sessions":                         {body: `{"name": "alices"}`},
		"GET" + box + "/sessions/{sid}/attach":             {upgrade: true},
		"GET" + box + "/terminal":                          {upgrade: true},
		"POST" + box + "/commands/{cid}/signal":            {body: `{"signal": "SIGKILL"}`},
		"POST" + box + "/sessions/{sid}/jobs":              {body: `{"command": "true"}`},
		"POST" + box + "/announce":                         {body: `{"args": ["true"]}`},
		"POST" + box + "/sessions/{sid}/run":               {body: `{"command": "true"}`},
		"POST" + box + "/run":                              {body: `{"command": "true"}`},
		"PUT" + box + "/files":                             {query: "path=/workspace/canary", body: "alice"},
		"GET" + box + "/files":                             {query: "path=/workspace/canary"},
		"DELETE" + box + "/files":                          {query: "path=/workspace/canary"},
		"GET" + box + "/files/list":                        {query: "path=/workspace"},
		"GET" + box + "/files/stat":                        {query: "path=/workspace/canary"},
		"POST" + box + "/files/mkdir":                      {body: `{"path": "/workspace/alice"}`},
		"POST" + box + "/files/move":                       {body: `{"from": "/workspace/canary", "to": "/workspace/alice"}`},
		"GET" + box + "/tree":                              {query: "path=/workspace"},
		"PUT" + box + "/tree":                              {query: "path=/workspace"},
		"GET" + box + "/commands/{cid}/output":             {},
		"GET" + box + "/sessions/{sid}/jobs":               {},
		"GET" + box + "/sessions/{sid}":                    {},
		"DELETE" + box + "/sessions/{sid}":                 {},
		"GET" + box + "/sessions":                          {},
		"GET" + box + "/commands":                          {},
		"GET" + box + "/commands/{cid}":                    {},
		"DELETE" + box + "/commands/{cid}":                 {},
		"GET" + box + "/sessions/{sid}/jobs/{jid}":         {},
		"GET" + box + "/sessions/{sid}/jobs/{jid}/output":  {},
		"POST" + box + "/sessions/{sid}/jobs/{jid}/signal": {body: `{"signal": "SIGKILL"}`},
		"POST" + box + "/sessions/{sid}/jobs/{jid}/stdin":  {body: `{"text": "alice"}`},
	})
}

// insideRoutes are those of the guest's own protocol.
func insideRoutes() map[string]attempt {
	const guest = " /v1/sandboxes/{id}/envd/{path...}"
	return repeat(attempt{}, "GET"+guest, "PUT"+guest, "POST"+guest, "PATCH"+guest, "DELETE"+guest, "OPTIONS"+guest)
}

// nativeRoutes are those of what is no sandbox.
func nativeRoutes() map[string]attempt {
	return merge(
		repeat(attempt{}, "GET /v1/builds/{build}", "GET /v1/builds/{build}/log", "PUT /v1/builds/{build}/files",
			"GET /v1/snapshots/{snapshot}", "DELETE /v1/snapshots/{snapshot}",
			"GET /v1/templates/{template}", "DELETE /v1/templates/{template}", "GET /v1/templates/{template}/builds", "DELETE /v1/templates/{template}/tags/{tag}",
			"GET /v1/volumes/{name}", "DELETE /v1/volumes/{name}", "POST /v1/builtins/{name}", "DELETE /v1/ssh-keys/{id}", "DELETE /v1/tokens/{id}"),
		repeat(attempt{rule: own}, "GET /v1/events", "GET /v1/events/stream", "GET /v1/images", "GET /v1/images/pre-pull", "GET /v1/pools", "GET /v1/providers",
			"GET /v1/snapshots", "GET /v1/ssh-keys", "GET /v1/stats", "GET /v1/templates", "GET /v1/tokens", "GET /v1/volumes"),
		repeat(attempt{rule: administrators}, "GET /v1/events/verify", "GET /v1/keys", "DELETE /v1/keys/{id}", "GET /v1/queue", "DELETE /v1/queue/{id}",
			"POST /v1/queue/{id}/retry", "DELETE /v1/images/{id}"),
		map[string]attempt{
			"POST /v1/keys":                       {rule: administrators, body: `{"owner": "bob"}`},
			"GET /v1/snapshots/{snapshot}/export": {},
			"POST /v1/snapshots/import":           {rule: administrators, body: "none"},
			"POST /v1/builds/{build}":             {body: `{"recipe": {"from": "host"}}`},
			"GET /v1/diff":                        {rule: reference, query: "from={snapshot}&to={sandbox}"},
			"POST /v1/images/pull":                {rule: own, body: `{"name": "registry.invalid/nothing"}`},
			"POST /v1/snapshots":                  {rule: reference, body: `{"sandbox": "{sandbox}", "name": "alices"}`},
			"POST /v1/templates":                  {rule: own, body: `{"name": "alices"}`},
			"PATCH /v1/templates/{template}":      {body: `{"public": true}`},
			"POST /v1/templates/{template}/tags":  {body: `{"tags": ["alice"]}`},
			"POST /v1/volumes":                    {rule: own, body: `{"name": "alices"}`},
			"POST /v1/ssh-keys":                   {rule: own, body: `{"name": "alices", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFsaWNlc2tleWFsaWNlc2tleWFsaWNlc2tleWFsaWNl"}`},
		},
	)
}

// e2bRoutes are those of E2B's API.
func e2bRoutes() map[string]attempt {
	const box, box2 = " /sandboxes/{id}", " /v2/sandboxes/{id}"
	return merge(
		repeat(attempt{}, "GET"+box, "DELETE"+box, "GET"+box+"/logs", "GET"+box+"/metrics", "GET"+box2+"/logs",
			"GET /templates/{id}", "DELETE /templates/{id}", "GET /templates/{id}/{what}", "GET /templates/{id}/files/{hash}",
			"GET /templates/{id}/builds/{build}/logs", "GET /templates/{id}/builds/{build}/status", "GET /templates/aliases/{alias}",
			"GET /volumes/{id}", "DELETE /volumes/{id}"),
		repeat(attempt{rule: own}, "GET /sandboxes", "GET /v2/sandboxes", "GET /snapshots", "GET /templates", "GET /v2/templates", "GET /volumes", "GET /teams"),
		repeat(attempt{rule: administrators}, "GET /nodes", "GET /nodes/{id}", "GET /api-keys", "DELETE /api-keys/{key}"),
		map[string]attempt{
			"POST" + box + "/connect":                {body: `{"timeout": 60}`},
			"POST" + box2 + "/connect":               {body: `{"timeout": 60}`},
			"POST" + box + "/fork":                   {body: `{}`},
			"POST" + box + "/pause":                  {body: `{}`},
			"POST" + box + "/refreshes":              {body: `{"duration": 60}`},
			"POST" + box + "/resume":                 {body: `{"timeout": 60}`},
			"POST" + box + "/snapshots":              {body: `{}`},
			"POST" + box + "/timeout":                {body: `{"timeout": 60}`},
			"PUT" + box + "/network":                 {body: `{}`},
			"GET /sandboxes/metrics":                 {rule: own, query: "sandbox_ids={sandbox}"},
			"POST /sandboxes":                        {rule: reference, body: `{"templateID": "{template}"}`},
			"POST /v2/sandboxes":                     {rule: reference, body: `{"templateID": "{template_name}"}`},
			"GET /teams/{id}/metrics":                {rule: foreign},
			"GET /teams/{id}/metrics/max":            {rule: foreign, query: "metric=concurrent_sandboxes"},
			"PATCH /templates/{id}":                  {body: `{"public": true}`},
			"PATCH /v2/templates/{id}":               {body: `{"public": true}`},
			"POST /templates/tags":                   {rule: reference, body: `{"target": "{template_name}:default", "tags": ["alice"]}`},
			"DELETE /templates/tags":                 {rule: reference, body: `{"name": "{template_name}", "tags": ["default"]}`},
			"POST /v3/templates":                     {rule: own, body: `{"name": "alices"}`},
			"POST /v2/templates/{id}/builds/{build}": {body: `{"fromImage": "{image}"}`},
			"POST /volumes":                          {rule: own, body: `{"name": "alices-too"}`},
			"POST /api-keys":                         {rule: administrators, body: `{"name": "alices"}`},
			"PATCH /api-keys/{key}":                  {rule: administrators, body: `{"name": "alices"}`},
			"PUT /templates/files":                   {rule: unrouted, query: "owner=bob&hash={hash}"},
		},
		repeat(attempt{rule: unrouted}, "POST /templates", "POST /templates/{id}", "POST /templates/{id}/builds/{build}", "POST /v2/templates",
			"POST /nodes/{id}", "POST /access-tokens", "DELETE /access-tokens/{id}",
			"GET /volumecontent/{id}/{what}", "POST /volumecontent/{id}/{what}", "PUT /volumecontent/{id}/{what}",
			"PATCH /volumecontent/{id}/{what}", "DELETE /volumecontent/{id}/{what}",
			"GET /secrets", "POST /secrets", "GET /secrets/{id}", "POST /secrets/{id}", "DELETE /secrets/{id}",
			"/access-tokens", "/access-tokens/", "/api-keys/", "/nodes/", "/sandboxes/", "/secrets", "/secrets/", "/snapshots/", "/teams/",
			"/templates/", "/v2", "/v2/", "/v3", "/v3/", "/volumecontent", "/volumecontent/", "/volumes/"),
		// Their GET is another route's.
		repeat(attempt{rule: own}, "/sandboxes", "/snapshots", "/templates", "/teams", "/volumes"),
		repeat(attempt{rule: administrators}, "/api-keys", "/nodes"),
	)
}

// aioRoutes are those of AIO's API.
func aioRoutes() map[string]attempt {
	const box = " /aio/{sandbox}/v1/"
	var patterns []string
	for _, path := range []string{
		"browser/info", "browser/screenshot", "code/info", "file/download", "mcp/servers", "mcp/{server}/tools", "sandbox",
		"sandbox/packages/nodejs", "sandbox/packages/python", "shell/sessions",
	} {
		patterns = append(patterns, "GET"+box+path)
	}
	for _, path := range []string{
		"browser/actions", "code/execute", "file/find", "file/list", "file/read", "file/replace", "file/search", "file/str_replace_editor",
		"file/upload", "file/write", "jupyter/execute", "jupyter/sessions/create", "mcp/{server}/tools/{tool}", "nodejs/execute", "shell/exec", "shell/kill",
		"shell/sessions/create", "shell/view", "shell/wait", "shell/write",
	} {
		patterns = append(patterns, "POST"+box+path)
	}
	return repeat(attempt{body: `{}`}, patterns...)
}

// mcpRoutes are those of MCP, whose sessions belong to a key.
func mcpRoutes() map[string]attempt {
	return map[string]attempt{
		"GET /mcp": {rule: unrouted}, "DELETE /mcp": {rule: unrouted}, "POST /mcp": {rule: unrouted, body: `{}`},
		"GET /mcp/{$}": {rule: unrouted}, "DELETE /mcp/{$}": {rule: unrouted}, "POST /mcp/{$}": {rule: unrouted, body: `{}`},
	}
}

// daytonaRoutes are those of Daytona's control API.
func daytonaRoutes() map[string]attempt {
	const box, port, saved = " /api/sandbox/{sandbox}", " /api/sandbox/{sandbox}/ports/{port}", " /api/snapshots/{snapshot}"
	return merge(
		repeat(attempt{}, "GET"+box, "DELETE"+box, "GET"+box+"/build-logs", "GET"+box+"/build-logs-url", "GET"+box+"/toolbox-proxy-url",
			"POST"+box+"/archive", "POST"+box+"/last-activity", "POST"+box+"/pause", "POST"+box+"/recover", "POST"+box+"/start", "POST"+box+"/stop",
			"POST"+box+"/autoarchive/{interval}", "POST"+box+"/autodelete/{interval}", "POST"+box+"/autopause/{interval}", "POST"+box+"/autostop/{interval}",
			"POST"+box+"/ttl/{interval}", "POST"+box+"/public/{public}", "POST"+box+"/ssh-access", "DELETE"+box+"/ssh-access",
			"GET"+box+"/signing-key", "POST"+box+"/signing-key/rotate", "GET"+port+"/preview-url", "GET"+port+"/signed-preview-url", "POST"+port+"/signed-preview-url/{token}/expire",
			"GET"+saved, "DELETE"+saved, "POST"+saved+"/activate", "GET"+saved+"/build-logs", "GET"+saved+"/build-logs-url",
			"GET /api/volumes/{volume}", "DELETE /api/volumes/{volume}", "GET /api/volumes/by-name/{name}"),
		repeat(attempt{rule: own}, "GET /api/sandbox", "GET /api/sandbox/paginated", "GET /api/snapshots", "GET /api/volumes", "GET /api/regions",
			"GET /api/shared-regions", "GET /api/api-keys/current", "GET /api/object-storage/push-access", "GET /api/config", "GET /api/health", "GET /api/health/ready"),
		repeat(attempt{rule: administrators}, "GET /api/api-keys", "GET /api/api-keys/{name}", "DELETE /api/api-keys/{name}"),
		map[string]attempt{
			"POST" + box + "/fork":                 {body: `{}`},
			"POST" + box + "/snapshot":             {body: `{"name": "alices"}`},
			"POST" + box + "/resize":               {body: `{"cpu": 2}`},
			"POST" + box + "/network-settings":     {body: `{"networkBlockAll": true}`},
			"PUT" + box + "/labels":                {body: `{"labels": {"canary": "alice"}}`},
			"POST /api/sandbox":                    {rule: reference, body: `{"snapshot": "{snapshot}"}`},
			"POST /api/snapshots":                  {rule: reference, body: `{"name": "alices-daytona", "imageName": "{image}", "gpu": 1}`},
			"POST /api/volumes":                    {rule: own, body: `{"name": "alices-daytona"}`},
			"GET /api/sandbox/ssh-access/validate": {rule: own, query: "token=none"},
			"GET /api/socket.io/{$}":               {rule: unrouted},
			"/api/object-storage/s3/":              {rule: unrouted}, // without a signature; another owner's objects: see the package
			"GET" + box + "/telemetry/{what}":      {rule: unrouted},
			"PUT" + box + "/secrets":               {rule: unrouted, body: `{}`},
			"POST" + saved + "/deactivate":         {rule: unrouted},
			"POST /api/api-keys":                   {rule: administrators, body: `{"name": "alices"}`},
		},
		repeat(attempt{rule: unrouted}, "/api", "/api/", "POST"+box+"/backup", "GET"+box+"/secrets", "GET"+box+"/ancestors",
			"GET"+box+"/forks", "GET"+box+"/parent", "GET /api/secret", "POST /api/secret",
			"GET /api/warm-pools", "POST /api/warm-pools", "GET /api/organizations", "GET /api/runners"),
	)
}

// isToolbox reports whether a route belongs to Daytona's toolbox API, all of whose paths name the
// sandbox.
func isToolbox(pattern string) bool {
	_, path, found := strings.Cut(pattern, " ")
	if !found {
		path = pattern
	}
	return strings.HasPrefix(path, "/toolbox/{sandbox}/") || strings.HasPrefix(path, "/api/toolbox/{sandbox}/toolbox/")
}

// toolboxRoutes are those of Daytona's toolbox API: each one looks for the sandbox first.
func toolboxRoutes(patterns []string) map[string]attempt {
	lines := make(map[string]attempt)
	for _, pattern := range patterns {
		if isToolbox(pattern) {
			lines[pattern] = attempt{body: `{}`}
		}
	}
	return lines
}
