package envd_test

import (
	"context"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
)

// calls are all there is to call. Those whose names begin with run may take as
// long as killing a command takes.
var calls = map[string]func(context.Context, *victim){
	"start":    startCall,
	"terminal": terminalCall,
	"connect":  connectCall,
	"commands": commandsCall,
	"follow":   followCall,
	// It may take as long as killing a command does.
	"run named": namedCall,
	"list processes": func(ctx context.Context, v *victim) {
		list, err := v.client.ListProcesses(ctx)
		v.told("list processes", err)
		for _, p := range list {
			if p.PID < 1 || p.PID > 1<<31-1 || len(p.Args) == 0 {
				v.Errorf("list processes: %d, %q", p.PID, p.Args)
				break
			}
		}
	},
	"init": func(ctx context.Context, v *victim) { v.told("init", v.client.Init(ctx, envd.InitRequest{})) },

	"read":       func(ctx context.Context, v *victim) { readCall(ctx, v, v.client) },
	"read range": func(ctx context.Context, v *victim) { rangeCall(ctx, v, v.client) },
	"write": func(ctx context.Context, v *victim) {
		writeCall(v, func(content *lent) error {
			err := v.client.WriteFile(ctx, "", "/file", content, sandpit.WriteOptions{Mode: 0o600})
			if left := content.left; err == nil && left > 0 {
				v.Errorf("write: it succeeded, but %d bytes were not sent", left)
			}
			return err
		})
	},
	"write tree": func(ctx context.Context, v *victim) {
		writeCall(v, func(content *lent) error { return v.client.WriteTree(ctx, "", envdtest.Dir, content) })
	},
	"write blocked":     blockedCall,
	"read tree":         treeCall,
	"describe":          func(ctx context.Context, v *victim) { describeCalls(ctx, v, v.client) },
	"confined describe": func(ctx context.Context, v *victim) { describeCalls(ctx, v, v.confined) },
	"list": func(ctx context.Context, v *victim) {
		listCall(ctx, v, v.client)
		listCall(ctx, v, v.confined)
	},
	"change":        func(ctx context.Context, v *victim) { changeCalls(ctx, v, v.client) },
	"confined read": func(ctx context.Context, v *victim) { readCall(ctx, v, v.confined) },
	"watch":         watchCall,
	"watch unread":  unreadWatchCall,

	"run": func(ctx context.Context, v *victim) {
		r, err := v.work.Run(ctx, sandpit.Command{Args: []string{"x"}, Stdin: strings.NewReader("input")})
		v.status("run", r.ExitCode, err)
		if most := 64<<10 + 100; len(r.Stdout) > most || len(r.Stderr) > most {
			v.Errorf("run: outputs of %d and %d bytes", len(r.Stdout), len(r.Stderr))
		}
	},
	"run output": func(ctx context.Context, v *victim) {
		out, err := v.work.Output(ctx, "x")
		if _, ok := errors.AsType[*workspace.ExitError](err); !ok { // it is about the output
			v.told("output", err)
		}
		if len(out) > 64<<10+100 {
			v.Errorf("output: %d bytes", len(out))
		}
	},
	"read all": func(ctx context.Context, v *victim) {
		data, err := v.work.ReadFile(ctx, "file")
		v.told("read all", err)
		if len(data) > 1<<20 {
			v.Errorf("read all: %d bytes", len(data))
		}
	},
	"copy dir from": func(ctx context.Context, v *victim) {
		_, err := v.work.CopyFrom(ctx, envdtest.Dir, filepath.Join(v.dir, copiedDir))
		v.told("copy from", err)
	},
	"copy file from": func(ctx context.Context, v *victim) {
		_, err := v.work.CopyFrom(ctx, "/file", filepath.Join(v.dir, copiedFile))
		v.told("copy from", err)
	},
	"copy dir to": func(ctx context.Context, v *victim) {
		v.told("copy to", v.work.CopyTo(ctx, filepath.Join(v.dir, "source"), "/to"))
	},
	"copy file to": func(ctx context.Context, v *victim) {
		v.told("copy to", v.work.CopyTo(ctx, filepath.Join(v.dir, "outside"), "/to"))
	},
}

// follow waits for a process, also longer than its context allows: with that
// the following has ended.
func (v *victim) follow(ctx context.Context, what string, p sandpit.Process) {
	v.Helper()
	if pid := p.PID(); pid < 1 || pid > 1<<31-1 {
		v.Errorf("%s: process %d", what, pid)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { v.told(what+": signal", p.Signal(ctx, sandpit.SIGTERM)) })
	wg.Go(func() { v.told(what+": resize", p.Resize(ctx, sandpit.TerminalSize{Cols: 1, Rows: 1})) })
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime+slack)
	defer cancel()
	status, err := p.Wait(later)
	v.status(what+": wait", status.Code, err)
	if status.Signaled && (status.Code < 129 || status.Code > 192) {
		v.Errorf("%s: %+v", what, status)
	}
	if later.Err() != nil {
		v.Errorf("%s: Wait outlasted the context of Start", what)
	}
}

func startCall(ctx context.Context, v *victim) {
	p, err := v.client.Start(ctx, sandpit.Command{
		Args: []string{"x"}, Stdin: io.LimitReader(zeros{}, 1<<20), Stdout: io.Discard, Stderr: io.Discard, Timeout: time.Hour,
	})
	if v.told("start", err); err == nil {
		v.follow(ctx, "start", p)
	}
}

func terminalCall(ctx context.Context, v *victim) {
	p, err := v.client.Start(ctx, sandpit.Command{
		Args: []string{"x"}, Stdin: strings.NewReader("input"), Stdout: io.Discard, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24},
	})
	if v.told("terminal", err); err == nil {
		v.follow(ctx, "terminal", p)
	}
}

func connectCall(ctx context.Context, v *victim) {
	p, err := v.client.Connect(ctx, 42, sandpit.Streams{Stdout: io.Discard})
	if v.told("connect", err); err == nil {
		v.follow(ctx, "connect", p)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func readCall(ctx context.Context, v *victim, f sandpit.Files) {
	r, err := f.ReadFile(ctx, "", "/file")
	if v.told("read", err); err != nil {
		return
	}
	_, err = io.Copy(io.Discard, r)
	v.told("read", err)
	v.told("read", r.Close())
}

func rangeCall(ctx context.Context, v *victim, f sandpit.Files) {
	r, err := f.ReadRange(ctx, "", "/file", 1, 100)
	if v.told("read range", err); err != nil {
		return
	}
	n, err := io.Copy(io.Discard, r)
	v.told("read range", err)
	v.told("read range", r.Close())
	if n > 100 {
		v.Errorf("read range: %d bytes", n)
	}
}

func treeCall(ctx context.Context, v *victim) {
	r, err := v.client.ReadTree(ctx, "", envdtest.Dir)
	if v.told("read tree", err); err != nil {
		return
	}
	_, err = io.Copy(io.Discard, r)
	v.told("read tree", err)
	v.told("read tree", r.Close())
}

// lent is content that must not be touched once the call has returned it.
type lent struct {
	returned atomic.Bool
	touched  atomic.Bool
	left     int // the race detector reports late reads
}

func (l *lent) Read(b []byte) (int, error) {
	if l.returned.Load() {
		l.touched.Store(true)
	}
	n := min(len(b), l.left)
	l.left -= n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func writeCall(v *victim, write func(*lent) error) {
	content := &lent{left: 16 << 20} // more than the way holds
	err := write(content)
	content.returned.Store(true)
	v.told("write", err)
	time.Sleep(20 * time.Millisecond)
	if content.touched.Load() {
		v.Error("write: the content was read after the call had returned")
	}
}

// blockedCall writes what never comes. It takes all of its time, and is only
// made where that matters.
func blockedCall(ctx context.Context, v *victim) {
	if !strings.HasPrefix(v.lie, "upload") && v.lie != "none" {
		return
	}
	r, w := io.Pipe()
	defer w.Close()
	err := v.client.WriteFile(ctx, "", "/file", r, sandpit.WriteOptions{})
	if v.told("write", err); err == nil {
		v.Error("write: nothing was sent, but it succeeded")
	}
}

func describeCalls(ctx context.Context, v *victim, f sandpit.Files) {
	file, err := f.Stat(ctx, "", "/file")
	if v.told("stat", err); err == nil {
		v.file("stat", file)
	}
}

func listCall(ctx context.Context, v *victim, f sandpit.Files) {
	list, err := f.ListDir(ctx, "", envdtest.Dir, 3)
	v.told("list", err)
	for _, file := range list {
		if v.file("list", file); v.Failed() {
			break
		}
	}
}

func changeCalls(ctx context.Context, v *victim, f sandpit.Files) {
	v.told("make", f.MakeDir(ctx, "", "/new"))
	v.told("move", f.Move(ctx, "", "/a", "/b"))
	v.told("remove", f.Remove(ctx, "", "/a"))
}

func watchCall(ctx context.Context, v *victim) {
	w, err := v.client.Watch(ctx, "", envdtest.Dir, sandpit.WatchOptions{Recursive: true, Describe: true})
	if v.told("watch", err); err != nil {
		return
	}
	for {
		e, err := w.Next(ctx)
		if err != nil {
			v.told("watch", err)
			break
		}
		if !filepath.IsLocal(e.Name) || path.Clean(e.Name) != e.Name || len(e.Name) > 4096 || e.Type == "" {
			v.Errorf("watch: %.200q %q", e.Name, e.Type)
		}
		if e.File != nil {
			v.file("watch", *e.File)
		}
		if v.Failed() {
			break
		}
	}
	v.told("watch", w.Close())
}

// unreadWatchCall lets events heap up.
func unreadWatchCall(ctx context.Context, v *victim) {
	w, err := v.client.Watch(ctx, "", envdtest.Dir, sandpit.WatchOptions{})
	if v.told("watch", err); err != nil {
		return
	}
	select {
	case <-time.After(callTime / 4):
	case <-ctx.Done():
	}
	v.told("watch", w.Close())
}
