package e2b

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// logRecord is an entry of a sandbox's log: an event about the sandbox.
type logRecord struct {
	At      time.Time         `json:"timestamp"`
	Level   string            `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields"`
}

// logLine is an entry for clients of the first version. Line is JSON with a level, a logger
// and a message.
type logLine struct {
	At   time.Time `json:"timestamp"`
	Line string    `json:"line"`
}

// levels are the levels of entries, the least severe first.
var levels = []string{"debug", "info", "warn", "error"}

func toEntry(e store.Event) logRecord {
	out := logRecord{At: e.At.UTC(), Level: "info", Message: e.Action, Fields: map[string]string{}}
	maps.Copy(out.Fields, e.Args)
	out.Fields["actor"], out.Fields["result"] = e.Actor, e.Result
	if e.Result != "ok" {
		out.Level = "error"
	}
	if e.Message != "" {
		out.Message += ": " + e.Message
	}
	return out
}

// logHandlers serve the logs of sandboxes.
type logHandlers struct {
	manager *manager.Manager
	store   *store.Store
}

// The bounds of one response.
const (
	defaultLogs = 1000
	maxLogs     = 1000
)

// readEntries returns the events about a sandbox, the oldest first.
func (h *logHandlers) readEntries(c *call, b sandpit.Sandbox) (all []logRecord, err error) {
	for after := int64(0); ; {
		list, err := h.store.Events().ListEvents(c.r.Context(), store.EventFilter{Sandbox: b.ID, After: after, Limit: store.MaxEvents})
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			all = append(all, toEntry(e))
			after = e.Seq
		}
		if len(list) < store.MaxEvents {
			return all, nil
		}
		all = all[max(0, len(all)-maxEntriesRead):]
	}
}

// maxEntriesRead is how many of the latest entries are searched.
const maxEntriesRead = 10_000

// getLogs returns the log of a sandbox.
func (h *logHandlers) getLogs(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	query := c.r.URL.Query()
	limit, err := parseNumber(query, "limit", defaultLogs, 0, maxLogs)
	if err != nil {
		return 0, nil, err
	}
	keep, backward, err := parseLogQuery(query)
	if err != nil {
		return 0, nil, err
	}
	all, err := h.readEntries(c, b)
	if err != nil {
		return 0, nil, err
	}
	all = slices.DeleteFunc(all, func(e logRecord) bool { return !keep(e) })
	if backward {
		slices.Reverse(all)
	}
	if len(all) > limit {
		all = all[:limit]
	}
	return http.StatusOK, map[string]any{"logs": nonNil(all)}, nil
}

// parseLogQuery returns a filter for the entries that a query selects, and whether the latest
// come first.
func parseLogQuery(query url.Values) (keep func(logRecord) bool, backward bool, err error) {
	switch direction := query.Get("direction"); direction {
	case "", "forward":
	case "backward":
		backward = true
	default:
		return nil, false, sandpit.Errorf(sandpit.Invalid, "direction %.40q: want forward or backward", direction)
	}
	least := 0
	if level := query.Get("level"); level != "" {
		if least = slices.Index(levels, level); least < 0 {
			return nil, false, sandpit.Errorf(sandpit.Invalid, "level %.40q: want %s", level, strings.Join(levels, ", "))
		}
	}
	usual := int64(0)
	if backward {
		usual = math.MaxInt64
	}
	cursor, err := parseUnix(query, "cursor", usual)
	search := query.Get("search")
	return func(e logRecord) bool {
		at := e.At.UnixMilli()
		there := at >= cursor
		if backward {
			there = at <= cursor
		}
		return there && slices.Index(levels, e.Level) >= least && strings.Contains(e.Message, search)
	}, backward, err
}

// getLogsV1 is getLogs for clients of the first version.
func (h *logHandlers) getLogsV1(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	query := c.r.URL.Query()
	limit, err := parseNumber(query, "limit", defaultLogs, 0, maxLogs)
	if err != nil {
		return 0, nil, err
	}
	start, err := parseUnix(query, "start", 0)
	if err != nil {
		return 0, nil, err
	}
	all, err := h.readEntries(c, b)
	if err != nil {
		return 0, nil, err
	}
	all = slices.DeleteFunc(all, func(e logRecord) bool { return e.At.UnixMilli() < start })
	if len(all) > limit {
		all = all[:limit]
	}
	lines := make([]logLine, len(all))
	for i, e := range all {
		text := maps.Clone(e.Fields)
		text["level"], text["logger"], text["message"] = e.Level, clientID, e.Message
		raw, err := json.Marshal(text)
		if err != nil {
			return 0, nil, err
		}
		lines[i] = logLine{e.At, string(raw)}
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": nonNil(all)}, nil
}

// nonNil returns a list that is a list in JSON even if it is empty.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
