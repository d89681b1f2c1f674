package e2b

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// sandboxItem is a sandbox in a list.
type sandboxItem struct {
	ID        sandpit.ID        `json:"sandboxID"`
	Template  string            `json:"templateID"`
	Alias     string            `json:"alias"`
	Client    string            `json:"clientID"`
	StartedAt time.Time         `json:"startedAt"`
	EndAt     time.Time         `json:"endAt"`
	State     string            `json:"state"`
	CPUs      int               `json:"cpuCount"`
	Memory    int64             `json:"memoryMB"`
	Disk      int64             `json:"diskSizeMB"`
	Version   string            `json:"envdVersion"`
	Metadata  map[string]string `json:"metadata"`
}

// sandboxDetail is a sandbox with all of its details.
type sandboxDetail struct {
	sandboxItem

	GuestToken string  `json:"envdAccessToken"`
	Domain     *string `json:"domain"`
	Internet   bool    `json:"allowInternetAccess"`
	Network    network `json:"network"`
	Lifecycle  struct {
		OnTimeout  string `json:"onTimeout"`
		AutoResume bool   `json:"autoResume"`
	} `json:"lifecycle"`
	Volumes []volumeMount `json:"volumeMounts"`
}

// The states of E2B's API.
const (
	running = "running"
	paused  = "paused"
)

// stateName returns E2B's name of a sandbox's state; "" for sandboxes that lists leave out.
func stateName(b sandpit.Sandbox) string {
	switch b.State {
	case sandpit.StateRunning, sandpit.StateResuming:
		return running
	case sandpit.StatePaused, sandpit.StatePausing, sandpit.StateStopped, sandpit.StateStopping,
		sandpit.StateArchived, sandpit.StateArchiving, sandpit.StateRestoring:
		return paused
	default:
		return ""
	}
}

// noDeadline is the deadline that clients get for sandboxes without one: they expect a time.
var noDeadline = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// getSandbox describes one sandbox.
func (h *sandboxHandlers) getSandbox(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	if stateName(b) == "" {
		return 0, nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s: %s", b.ID, b.State, b.Reason)
	}
	guest, _, err := h.describer.tokens.AccessTokens(c.r.Context(), b.ID, false)
	if err != nil {
		return 0, nil, err
	}
	m, _ := markOf(b)
	out := sandboxDetail{
		sandboxItem: h.describer.toListed(b), GuestToken: guest, Domain: h.describer.domainName(), Network: toNetwork(b), Volumes: volumeMounts(b),
		Internet: b.Spec.Network.Online && !isClosed(b.Spec.Network),
	}
	out.Lifecycle.OnTimeout = "kill"
	if m.Timeout != sandpit.ActionKill {
		out.Lifecycle.OnTimeout = "pause"
	}
	out.Lifecycle.AutoResume = m.Wakes
	return http.StatusOK, out, nil
}

// listRunning lists all running sandboxes, for clients of the first version.
func (h *sandboxHandlers) listRunning(c *call) (int, any, error) {
	want, err := parseChoice(c.r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	want.states = []string{running}
	return http.StatusOK, h.describer.toList(h.chooseSandboxes(c, want)), nil
}

// listSandboxes lists sandboxes, one page at a time.
func (h *sandboxHandlers) listSandboxes(c *call) (int, any, error) {
	query := c.r.URL.Query()
	want, err := parseChoice(query)
	if err != nil {
		return 0, nil, err
	}
	limit, err := parseNumber(query, "limit", 100, 1, 1000)
	if err != nil {
		return 0, nil, err
	}
	list := h.chooseSandboxes(c, want)
	total := 0
	for _, b := range list {
		if stateName(b) == running {
			total++
		}
	}
	if token := query.Get("nextToken"); token != "" {
		at, err := parsePosition(token)
		if err != nil {
			return 0, nil, err
		}
		list = slices.DeleteFunc(list, func(b sandpit.Sandbox) bool { return want.comparePositions(positionOf(b), at) <= 0 })
	}
	header := c.w.Header()
	header.Set("X-Total-Running", strconv.Itoa(total))
	if len(list) > limit {
		list = list[:limit]
		header.Set("X-Next-Token", positionOf(list[limit-1]).String())
	}
	return http.StatusOK, h.describer.toList(list), nil
}

// sandboxFilter selects and orders sandboxes of a list.
type sandboxFilter struct {
	metadata  map[string]string
	states    []string
	template  string
	after     time.Time
	ascending bool // the oldest first
}

// chooseSandboxes returns the selected sandboxes of the client's owner in the order of their
// start.
func (h *sandboxHandlers) chooseSandboxes(c *call, want sandboxFilter) []sandpit.Sandbox {
	list := h.manager.List(manager.Filter{Owner: c.client.Owner, Labels: want.metadata})
	list = slices.DeleteFunc(list, func(b sandpit.Sandbox) bool {
		m, _ := markOf(b)
		return !slices.Contains(want.states, stateName(b)) || want.template != "" && m.Template != want.template || b.CreatedAt.Before(want.after)
	})
	slices.SortFunc(list, func(a, b sandpit.Sandbox) int { return want.comparePositions(positionOf(a), positionOf(b)) })
	return list
}

// parseChoice reads a filter from a query.
func parseChoice(query url.Values) (want sandboxFilter, err error) {
	want.states = []string{running, paused}
	if list := query["state"]; len(list) > 0 {
		want.states = strings.Split(strings.Join(list, ","), ",")
		for _, state := range want.states {
			if state != running && state != paused {
				return want, sandpit.Errorf(sandpit.Invalid, "state %.40q: want running or paused", state)
			}
		}
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		want.ascending = true
	default:
		return want, sandpit.Errorf(sandpit.Invalid, "order %.40q: want asc or desc", order)
	}
	want.template, _, _ = strings.Cut(query.Get("template"), ":")
	if text := query.Get("startedAfter"); text != "" {
		if want.after, err = time.Parse(time.RFC3339, text); err != nil {
			return want, sandpit.Errorf(sandpit.Invalid, "startedAfter %.60q: want a time in the format of RFC 3339", text)
		}
	}
	want.metadata, err = parseMetadata(query.Get("metadata"))
	return want, err
}

// parseMetadata reads metadata whose names and values clients encode twice.
func parseMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "metadata: want name=value&…, encoded as in a URL")
	}
	all := make(map[string]string, len(values))
	for name, list := range values {
		key, err := url.PathUnescape(name)
		if err != nil {
			key = name // the client has encoded it once
		}
		value, err := url.PathUnescape(list[0])
		if err != nil {
			value = list[0]
		}
		all[key] = value
	}
	return all, nil
}

// parseNumber reads a number of a query, or returns the default.
func parseNumber(query url.Values, name string, usual, least, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %.40q: want %d to %d", name, text, least, most)
	}
	return n, nil
}

// position is the place of a sandbox in a sorted list.
type position struct {
	at time.Time
	id sandpit.ID
}

func positionOf(b sandpit.Sandbox) position { return position{b.CreatedAt, b.ID} }

func (want sandboxFilter) comparePositions(a, b position) int {
	order := cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id))
	if want.ascending {
		return order
	}
	return -order
}

// String returns a place as a token.
func (p position) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.at.UTC().Format(time.RFC3339Nano) + "_" + string(p.id)))
}

func parsePosition(token string) (position, error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	text, id, _ := strings.Cut(string(raw), "_")
	at, second := time.Parse(time.RFC3339Nano, text)
	if err != nil || second != nil || sandpit.ID(id).Validate() != nil {
		return position{}, sandpit.Errorf(sandpit.Invalid, "invalid nextToken")
	}
	return position{at, sandpit.ID(id)}, nil
}
