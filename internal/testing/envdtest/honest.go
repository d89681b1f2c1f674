package envdtest

import (
	"maps"
	"net/http"
	"path"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// Dir is a directory in the honest responses of a Liar; all other paths are files.
const Dir = "/dir"

// honest answers like a guest with one process and one file.
func honest() answers {
	life := streamed(ended, started(honestPID), stdout([]byte("out")), exited(0, "exit status 0"))
	file := entry(func(*filesystem.EntryInfo) {})
	return answers{
		"Start":       life,
		"Connect":     life,
		"List":        unary(&process.ListResponse{Processes: []*process.ProcessInfo{{Pid: honestPID, Config: &process.ProcessConfig{Cmd: "true"}}}}),
		"Update":      unary(&process.UpdateResponse{}),
		"SendInput":   unary(&process.SendInputResponse{}),
		"CloseStdin":  unary(&process.CloseStdinResponse{}),
		"SendSignal":  unary(&process.SendSignalResponse{}),
		"StreamInput": streamed(ended, &process.StreamInputResponse{}),

		"Stat":     honestStat,
		"ListDir":  unary(&filesystem.ListDirResponse{Entries: []*filesystem.EntryInfo{file}}),
		"MakeDir":  unary(&filesystem.MakeDirResponse{Entry: file}),
		"Move":     unary(&filesystem.MoveResponse{Entry: file}),
		"Remove":   unary(&filesystem.RemoveResponse{}),
		"WatchDir": streamed(ended, watchStarted(), fileEvent("file", filesystem.EventType_EVENT_TYPE_CREATE, file)),

		download: honestDownload,
		upload:   answer(http.StatusOK, "[]"),
		pack: answer(http.StatusOK, strings.Join([]string{
			string(dir("./")), string(members(member{name: "./file", size: int64(len(honestContent))})), string(content(honestContent)), string(ending()),
		}, "")),
		unpack:   answer(http.StatusNoContent, ""),
		initCall: answer(http.StatusNoContent, ""),

		"GET /health": answer(http.StatusNoContent, ""),
	}
}

func allHonest() answers {
	all := honest()
	maps.Copy(all, honestCommands())
	return all
}

func honestDownload(c *call) {
	if c.r.Header.Get("Range") != "" {
		answer(http.StatusPartialContent, honestContent[:1], "Content-Range", "bytes 0-0/7")(c)
		return
	}
	answer(http.StatusOK, honestContent)(c)
}

func honestStat(c *call) {
	var req filesystem.StatRequest
	body := make([]byte, 64*kib)
	n, _ := c.r.Body.Read(body) // a request of a few bytes; a short read only changes the path
	if proto.Unmarshal(body[:n], &req) != nil {
		c.status(http.StatusBadRequest)
		return
	}
	c.unary(encode(&filesystem.StatResponse{Entry: entry(func(e *filesystem.EntryInfo) {
		e.Name, e.Path = path.Base(req.GetPath()), req.GetPath()
		if req.GetPath() == Dir {
			e.Type, e.Mode = filesystem.FileType_FILE_TYPE_DIRECTORY, 0o755
		}
	})}))
}
