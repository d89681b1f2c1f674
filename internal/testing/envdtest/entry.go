package envdtest

import (
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
)

// entry returns an honest file, modified by change.
func entry(change func(*filesystem.EntryInfo)) *filesystem.EntryInfo {
	e := &filesystem.EntryInfo{
		Name: "file", Type: filesystem.FileType_FILE_TYPE_FILE, Path: "/dir/file", Size: 7, Mode: 0o644,
		Permissions: "-rw-r--r--", Owner: "root", Group: "root",
		ModifiedTime: timestamppb.New(timestamppb.Now().AsTime()),
	}
	change(e)
	return e
}

// described adds a lie to every description of a file.
func described(change func(*filesystem.EntryInfo)) answers {
	return describedAs("file", func() *filesystem.EntryInfo { return entry(change) })
}

func describedAs(event string, describe func() *filesystem.EntryInfo) answers {
	// Created on demand, because some are large.
	lazily := func(message func(e *filesystem.EntryInfo) proto.Message) func(*call) {
		return func(c *call) { c.unary(encode(message(describe()))) }
	}
	return answers{
		"Stat":    lazily(func(e *filesystem.EntryInfo) proto.Message { return &filesystem.StatResponse{Entry: e} }),
		"MakeDir": lazily(func(e *filesystem.EntryInfo) proto.Message { return &filesystem.MakeDirResponse{Entry: e} }),
		"Move":    lazily(func(e *filesystem.EntryInfo) proto.Message { return &filesystem.MoveResponse{Entry: e} }),
		"ListDir": lazily(func(e *filesystem.EntryInfo) proto.Message {
			return &filesystem.ListDirResponse{Entries: []*filesystem.EntryInfo{e, e}}
		}),
		"WatchDir": func(c *call) {
			streamed(ended, watchStarted(), fileEvent(event, filesystem.EventType_EVENT_TYPE_CREATE, describe()))(c)
		},
	}
}

func named(name string) answers {
	return described(func(e *filesystem.EntryInfo) { e.Name = name; e.Path = "/dir/" + name })
}

func at(path string) answers {
	return described(func(e *filesystem.EntryInfo) { e.Path = path })
}

func leadsTo(target string) answers {
	return described(func(e *filesystem.EntryInfo) {
		e.Type, e.SymlinkTarget = filesystem.FileType_FILE_TYPE_SYMLINK, &target
	})
}

func modified(seconds int64, nanos int32) answers {
	return described(func(e *filesystem.EntryInfo) {
		e.ModifiedTime = &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
	})
}

// entryLies are about descriptions of files.
func entryLies() map[string]answers {
	lies := map[string]answers{
		"name-empty": named(""), "name-dot": named("."), "name-dots": named(".."), "name-slash": named("a/b"),
		"name-up": named("../x"), "name-nul": named("a\x00b"), "name-absolute": named("/etc/passwd"),
		"name-1mib": named(strings.Repeat("n", mib)), "name-escapes": named("\x1b[2J\r\n"),
		"path-relative": at("dir/file"), "path-empty": at(""), "path-up": at("/dir/../../etc/passwd"),
		"path-nul": at("/dir/\x00"), "path-root": at("/"), "path-1mib": at(strings.Repeat("/x", mib/2)), "path-other": at("/elsewhere"),
		"size-negative": described(func(e *filesystem.EntryInfo) { e.Size = -1 }),
		"size-min":      described(func(e *filesystem.EntryInfo) { e.Size = math.MinInt64 }),
		"size-max":      described(func(e *filesystem.EntryInfo) { e.Size = math.MaxInt64 }),
		"type-0":        described(func(e *filesystem.EntryInfo) { e.Type = 0 }),
		"type-99":       described(func(e *filesystem.EntryInfo) { e.Type = 99 }),
		"type-minus":    described(func(e *filesystem.EntryInfo) { e.Type = math.MinInt32 }),
		"mode-max":      described(func(e *filesystem.EntryInfo) { e.Mode = math.MaxUint32 }),
		"owner-1mib":    described(func(e *filesystem.EntryInfo) { e.Owner = strings.Repeat("o", mib) }),
		"time-max":      modified(1<<62, -5), "time-min": modified(math.MinInt64, math.MinInt32),
		"time-far": modified(1<<40, 0), "time-none": described(func(e *filesystem.EntryInfo) { e.ModifiedTime = nil }),
		"link-empty": leadsTo(""), "link-up": leadsTo("../../../../etc/passwd"), "link-passwd": leadsTo("/etc/passwd"),
		"link-nul": leadsTo("/a\x00b"), "link-1mib": leadsTo(strings.Repeat("/l", mib/2)), "link-self": leadsTo("/dir/file"),
		"entry-nil": describedAs("file", func() *filesystem.EntryInfo { return nil }),
		"metadata-names": described(func(e *filesystem.EntryInfo) {
			e.Metadata = map[string]string{"": "", "../x": "\x00", "a\r\nb": "\x1b[2J"}
		}),
	}
	for name, body := range map[string]func() []byte{
		"dir-17mib":  func() []byte { return in(1, in(1, make([]byte, 17*mib))) },
		"dir-hollow": func() []byte { return hollow(1, 15*mib) },
		"dir-times":  func() []byte { return in(1, hollow(9, 15*mib)) },
		"dir-many": func() []byte {
			return repeatedly(encode(&filesystem.ListDirResponse{Entries: []*filesystem.EntryInfo{entry(func(*filesystem.EntryInfo) {})}}), 100_000)
		},
		"metadata-many": func() []byte {
			return in(1, append(encode(entry(func(*filesystem.EntryInfo) {})), marks(11, 200_000)...))
		},
		"dir-not-text": func() []byte { return in(1, in(1, []byte("\xff"))) },
	} {
		lies[name] = answers{"ListDir": unaryBytes(body)}
		lies["stat-"+name] = answers{"Stat": unaryBytes(body)}
	}
	return lies
}

func watchStarted() *filesystem.WatchDirResponse {
	return &filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}}
}

func fileEvent(name string, kind filesystem.EventType, e *filesystem.EntryInfo) *filesystem.WatchDirResponse {
	return &filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{
		Filesystem: &filesystem.FilesystemEvent{Name: name, Type: kind, Entry: e},
	}}
}

// watchLies are about events, in the responses to WatchDir.
func watchLies() map[string]answers {
	const created = filesystem.EventType_EVENT_TYPE_CREATE
	watch := func(then func(*call), messages ...proto.Message) answers {
		return answers{"WatchDir": streamed(then, messages...)}
	}
	start := watchStarted()
	one := func(name string) answers { return watch(ended, start, fileEvent(name, created, nil)) }
	large := entry(func(e *filesystem.EntryInfo) { e.Metadata = map[string]string{"m": strings.Repeat("m", 60*kib)} })
	return map[string]answers{
		"watch-no-start":      watch(ended, fileEvent("file", created, nil)),
		"watch-silent":        watch(silent),
		"watch-start-silent":  watch(silent, start),
		"watch-start-endless": watch(forever(start), start),
		"watch-cut":           watch(cutOff, start),
		"watch-ended":         watch(ended, start),
		"watch-empty":         watch(forever(&filesystem.WatchDirResponse{}), start),
		"watch-up":            one("../../x"), "watch-absolute": one("/abs"), "watch-name-empty": one(""), "watch-dots": one(".."),
		"watch-inside": one("a/../../../x"), "watch-nul": one("a\x00"), "watch-slash": one("a/"), "watch-name-1mib": one(strings.Repeat("w", mib)),
		"watch-type-0":        watch(ended, start, fileEvent("file", 0, nil)),
		"watch-type-99":       watch(ended, start, fileEvent("file", 99, nil)),
		"watch-endless":       watch(forever(fileEvent("file", created, nil)), start),
		"watch-endless-large": watch(forever(fileEvent("file", created, large)), start),
		"watch-endless-1mib":  watch(forever(fileEvent(strings.Repeat("w/", mib/2)+"w", created, nil)), start),
		"watch-endless-names": watch(forever(fileEvent(strings.Repeat("w", 100*kib), created, nil)), start),
	}
}
