package data

import (
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	binary  = "application/octet-stream"
	tarType = "application/x-tar"
)

// allOperations returns the table of all calls, which Register serves and Describe describes.
func allOperations() []operation {
	return slices.Concat(guestOperations(), runOperations(), fileOperations(), commandOperations(), sessionOperations(), jobOperations())
}

func guestOperations() (all []operation) {
	for _, method := range guestMethods {
		o := operation{
			id: "forward" + method[:1] + strings.ToLower(method[1:]), serve: (*Server).forwardToGuest, summary: "Send a request to the guest in its own protocol. The server adds the guest's key.",
			method: method, path: "/envd/{path...}", status: http.StatusOK, media: "*/*",
		}
		if method != http.MethodGet && method != http.MethodDelete && method != http.MethodOptions {
			o.content = "*/*"
		}
		all = append(all, o)
	}
	return all
}

func runOperations() []operation {
	return []operation{{
		id: "runCommand", serve: (*Server).runCommand, summary: "Run a command. It is killed when the client disconnects, unless it is detached.",
		method: http.MethodPost, path: "/run", body: wire.Run{}, status: http.StatusOK, result: wire.RunResult{}, accepted: wire.Started{}, media: api.ContentTypeStream,
	}, {
		id: "announceCommand", serve: (*Server).announceCommand, summary: "Announce a command that the client runs in a shell, so that the server checks and records it, or report how one ended.",
		method: http.MethodPost, path: "/announce", body: wire.Announcement{}, status: http.StatusNoContent,
	}}
}

func fileOperations() []operation {
	depth := numberParam("depth", "Depth of the list. Default: 1.", 1)
	return []operation{
		{id: "readFile", serve: (*Server).readFile, summary: "Read a file or ranges of it.", method: http.MethodGet, path: "/files", params: fileParams(), status: http.StatusOK, media: binary},
		{
			id: "writeFile", serve: (*Server).writeFile, summary: "Write a file atomically.", method: http.MethodPut, path: "/files",
			params: fileParams(textParam("mode", "Permissions in octal. Default: those of the existing file, or 644.")), content: binary, status: http.StatusNoContent,
		},
		{id: "removeFile", serve: (*Server).removeFile, summary: "Remove a file, or a directory with its content.", method: http.MethodDelete, path: "/files", params: fileParams(), status: http.StatusNoContent},
		{id: "statFile", serve: (*Server).statFile, summary: "Describe a file.", method: http.MethodGet, path: "/files/stat", params: fileParams(), status: http.StatusOK, result: wire.Entry{}},
		{
			id: "listFiles", serve: (*Server).listFiles, summary: "List a directory.", method: http.MethodGet, path: "/files/list", params: fileParams(depth),
			status: http.StatusOK, result: wire.Page[wire.Entry]{},
		},
		{id: "makeDirectory", serve: (*Server).makeDir, summary: "Create a directory and its parents.", method: http.MethodPost, path: "/files/mkdir", body: wire.MakeDir{}, status: http.StatusNoContent},
		{id: "moveFile", serve: (*Server).moveFile, summary: "Rename a file or directory.", method: http.MethodPost, path: "/files/move", body: wire.Move{}, status: http.StatusNoContent},
		{id: "readTree", serve: (*Server).readTree, summary: "Read a directory as a tar stream.", method: http.MethodGet, path: "/tree", params: fileParams(), status: http.StatusOK, media: tarType},
		{id: "writeTree", serve: (*Server).writeTree, summary: "Unpack a tar stream into a directory.", method: http.MethodPut, path: "/tree", params: fileParams(), content: tarType, status: http.StatusNoContent},
	}
}

func commandOperations() []operation {
	output := []*huma.Param{
		numberParam("stdout", "The offset to start at. Default: 0.", 0), numberParam("stderr", "The offset to start at. Default: 0.", 0),
		{Name: "follow", In: "query", Description: "Continue until the command has ended. Default: true.", Schema: &huma.Schema{Type: huma.TypeBoolean}},
		{Name: "Last-Event-ID", In: "header", Description: "Takes precedence over the offsets.", Schema: &huma.Schema{Type: huma.TypeString}},
	}
	return []operation{
		{id: "listCommands", serve: (*Server).listCommands, summary: "List the commands of a sandbox, including ended ones.", method: http.MethodGet, path: "/commands", status: http.StatusOK, result: wire.Page[wire.Command]{}},
		{id: "getCommand", serve: (*Server).getCommand, summary: "Describe a command.", method: http.MethodGet, path: "/commands/{cid}", status: http.StatusOK, result: wire.Command{}},
		{id: "forgetCommand", serve: (*Server).forgetCommand, summary: "Remove an ended command and its output.", method: http.MethodDelete, path: "/commands/{cid}", status: http.StatusNoContent},
		{
			id: "followCommand", serve: (*Server).followCommand, summary: "Stream the output of a command from its start until it ends.", method: http.MethodGet, path: "/commands/{cid}/output",
			params: output, status: http.StatusOK, media: api.ContentTypeStream,
		},
		{id: "signalCommand", serve: (*Server).signalCommand, summary: "Send a signal to a command.", method: http.MethodPost, path: "/commands/{cid}/signal", body: wire.Signal{}, status: http.StatusNoContent},
	}
}

func sessionOperations() []operation {
	cols, rows := numberParam("cols", "Columns. Default: 80.", 1), numberParam("rows", "Rows. Default: 24.", 1)
	return []operation{
		{id: "openSession", serve: (*Server).openSession, summary: "Open a terminal session: a shell that keeps its state.", method: http.MethodPost, path: "/sessions", body: wire.NewSession{}, status: http.StatusCreated, result: wire.Session{}},
		{id: "listSessions", serve: (*Server).listSessions, summary: "List the open terminal sessions.", method: http.MethodGet, path: "/sessions", status: http.StatusOK, result: wire.Page[wire.Session]{}},
		{id: "getSession", serve: (*Server).getSession, summary: "Describe a terminal session.", method: http.MethodGet, path: "/sessions/{sid}", status: http.StatusOK, result: wire.Session{}},
		{id: "closeSession", serve: (*Server).closeSession, summary: "End a terminal session and all of its programs.", method: http.MethodDelete, path: "/sessions/{sid}", status: http.StatusNoContent},
		{
			id: "runInSession", serve: (*Server).runInSession, summary: "Run a command in the shell of a session.", method: http.MethodPost, path: "/sessions/{sid}/run",
			body: wire.SessionRun{}, status: http.StatusOK, result: wire.SessionResult{},
		},
		{
			id: "openTerminal", serve: (*Server).openTerminal, summary: "Run a program in a terminal over a WebSocket.", method: http.MethodGet, path: "/terminal",
			params: []*huma.Param{cols, rows, textParam("command", "A command line for a shell. Default: an interactive shell."), textParam("user", "The user of the program. Default: the sandbox's."), textParam("dir", "The working directory. Default: the sandbox's.")},
			status: http.StatusSwitchingProtocols,
		},
		{
			id: "attachSession", serve: (*Server).attachSession, summary: "Connect to a terminal in a session over a WebSocket.", method: http.MethodGet, path: "/sessions/{sid}/attach",
			params: []*huma.Param{cols, rows, textParam("job", "A job of the session that has a terminal. Default: a new shell.")}, status: http.StatusSwitchingProtocols,
		},
	}
}

func jobOperations() []operation {
	offset := numberParam("offset", "The offset to start at. Default: 0.", 0)
	const one = "/sessions/{sid}/jobs/{jid}"
	return []operation{
		{id: "startJob", serve: (*Server).startJob, summary: "Start a program in the background of a session.", method: http.MethodPost, path: "/sessions/{sid}/jobs", body: wire.NewJob{}, status: http.StatusCreated, result: wire.Job{}},
		{id: "listJobs", serve: (*Server).listJobs, summary: "List the jobs of a session.", method: http.MethodGet, path: "/sessions/{sid}/jobs", status: http.StatusOK, result: wire.Page[wire.Job]{}},
		{id: "getJob", serve: (*Server).getJob, summary: "Describe a job.", method: http.MethodGet, path: one, status: http.StatusOK, result: wire.Job{}},
		{
			id: "readJobOutput", serve: (*Server).readJobOutput, summary: "Read the output of a job, or follow it as events.", method: http.MethodGet, path: one + "/output",
			params: []*huma.Param{offset}, status: http.StatusOK, result: wire.Chunk{}, media: api.ContentTypeStream,
		},
		{id: "writeJobInput", serve: (*Server).writeJobInput, summary: "Write to the input of a job.", method: http.MethodPost, path: one + "/stdin", body: wire.Input{}, status: http.StatusNoContent},
		{id: "signalJob", serve: (*Server).signalJob, summary: "Send a signal to a job.", method: http.MethodPost, path: one + "/signal", body: wire.Signal{}, status: http.StatusNoContent},
	}
}
