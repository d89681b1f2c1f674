package daytona

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// maxPage is the maximum number of items in a page, and defaultPage their number without a
// limit in the request.
const (
	maxPage     = 200
	defaultPage = 100
)

// findSandbox returns the sandbox whose ID or name is in the path. NotFound: no such sandbox,
// or it was deleted. Conflict: it waits for the build of its image.
func (h *sandboxHandlers) findSandbox(c *call) (sandpit.Sandbox, error) {
	b, err := findSandbox(c, h.manager)
	if p, ok := h.findPending(c, err); ok {
		return b, p.refuse()
	}
	return b, err
}

// findPending returns the sandbox in the path if it waits for the build of its image. err is the
// result of looking for it among those of the manager.
func (h *sandboxHandlers) findPending(c *call, err error) (pendingSandbox, bool) {
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return pendingSandbox{}, false
	}
	return h.pending.find(c.client, c.r.PathValue("sandbox"))
}

func findSandbox(c *call, m *manager.Manager) (sandpit.Sandbox, error) {
	text := c.r.PathValue("sandbox")
	missing := sandpit.Errorf(sandpit.NotFound, "Sandbox with ID or name %.100s not found", text)
	if sandpit.ID(text).Validate() != nil {
		for _, b := range m.List(manager.Filter{Owner: c.client.Owner}) {
			if b.Spec.Name == text && !isGone(b) {
				return b, nil
			}
		}
		return sandpit.Sandbox{}, missing
	}
	b, err := api.Find(c.r.Context(), m, sandpit.ID(text))
	if sandpit.CodeOf(err) == sandpit.NotFound || err == nil && isGone(b) {
		return sandpit.Sandbox{}, missing
	}
	return b, err
}

// isGone reports whether clients do not see a sandbox any more.
func isGone(b sandpit.Sandbox) bool {
	return b.State == sandpit.StateDeleting || b.State == sandpit.StateDeleted
}

// getSandbox describes one sandbox.
func (h *sandboxHandlers) getSandbox(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if p, ok := h.findPending(c, err); ok {
		out, err := h.describePending(c, p)
		return http.StatusOK, out, err
	}
	if err != nil {
		return 0, nil, err
	}
	return h.describer.respond(c, b.ID)
}

// page is a page of a list with a cursor.
type page struct {
	Items []sandboxItem `json:"items"`
	Next  *string       `json:"nextCursor"`
}

// numberedPage is a page of a list with numbered pages.
type numberedPage[T any] struct {
	Items      []T `json:"items"`
	Total      int `json:"total"`
	Page       int `json:"page"`
	TotalPages int `json:"totalPages"`
}

// toNumberedPage returns a page of a list.
func toNumberedPage[T any](all []T, number, limit int) numberedPage[T] {
	p := numberedPage[T]{Items: []T{}, Total: len(all), Page: number, TotalPages: (len(all) + limit - 1) / limit}
	if number-1 < p.TotalPages {
		from := (number - 1) * limit
		p.Items = all[from:min(from+limit, len(all))]
	}
	return p
}

// listSandboxes lists sandboxes, one page at a time.
func (h *sandboxHandlers) listSandboxes(c *call) (int, any, error) {
	query := c.r.URL.Query()
	want, err := parseFilter(query)
	if err != nil {
		return 0, nil, err
	}
	limit, err := parseNumber(query, "limit", defaultPage, maxPage)
	if err != nil {
		return 0, nil, err
	}
	all := h.chooseSandboxes(c, want)
	if text := query.Get("cursor"); text != "" {
		at, err := parsePosition(text)
		if err != nil {
			return 0, nil, err
		}
		all = slices.DeleteFunc(all, func(i sandboxItem) bool { return want.compare(want.positionOf(i), at) <= 0 })
	}
	out := page{Items: all}
	if len(all) > limit {
		out.Items = all[:limit]
		out.Next = new(want.positionOf(all[limit-1]).String())
	}
	return http.StatusOK, out, nil
}

// listPages lists sandboxes by numbered pages, for clients of earlier versions.
func (h *sandboxHandlers) listPages(c *call) (int, any, error) {
	query := c.r.URL.Query()
	want, err := parseFilter(query)
	if err != nil {
		return 0, nil, err
	}
	limit, err := parseNumber(query, "limit", defaultPage, maxPage)
	if err != nil {
		return 0, nil, err
	}
	number, err := parseNumber(query, "page", 1, 1<<20)
	if err != nil {
		return 0, nil, err
	}
	pages := toNumberedPage(h.chooseSandboxes(c, want), number, limit)
	out := numberedPage[sandbox]{Items: []sandbox{}, Total: pages.Total, Page: pages.Page, TotalPages: pages.TotalPages}
	for _, item := range pages.Items {
		one, found, err := h.describeItem(c, item.ID)
		if err != nil {
			return 0, nil, err
		}
		if found { // otherwise it was deleted meanwhile
			out.Items = append(out.Items, one)
		}
	}
	return http.StatusOK, out, nil
}

// describeItem describes a sandbox of a list, if it still exists.
func (h *sandboxHandlers) describeItem(c *call, id sandpit.ID) (out sandbox, found bool, err error) {
	if p, ok := h.pending.find(c.client, string(id)); ok {
		out, err = h.describePending(c, p)
		return out, true, err
	}
	b, err := h.manager.Get(id)
	if err != nil {
		return out, false, nil //nolint:nilerr // it was deleted
	}
	out, err = h.describer.toSandbox(c.r.Context(), externalURL(c.r), b)
	return out, true, err
}

// sandboxFilter selects and orders sandboxes of a list.
type sandboxFilter struct {
	id, name   string // prefixes
	labels     map[string]string
	states     []string
	snapshots  []string
	regions    []string
	classes    []string
	public     *bool
	recover    *bool              // recoverable
	least      map[string]float64 // by the name in sizesOf
	most       map[string]float64
	after      map[string]time.Time // by the name in timesOf
	before     map[string]time.Time
	sort       string
	descending bool
}

// chooseSandboxes returns the selected sandboxes of the client's owner in their order.
func (h *sandboxHandlers) chooseSandboxes(c *call, want sandboxFilter) []sandboxItem {
	url, all := externalURL(c.r), []sandboxItem{}
	for _, b := range h.manager.List(manager.Filter{Owner: c.client.Owner, Labels: want.labels}) {
		if item := h.describer.toItem(url, b); !isGone(b) && want.accepts(item) {
			all = append(all, item)
		}
	}
	for _, p := range h.pending.list(c.client.Owner) {
		if item := h.describer.toPendingItem(url, p); hasLabels(item.Labels, want.labels) && want.accepts(item) {
			all = append(all, item)
		}
	}
	slices.SortFunc(all, func(a, b sandboxItem) int { return want.compare(want.positionOf(a), want.positionOf(b)) })
	return all
}

// hasLabels reports whether labels contain all of those wanted.
func hasLabels(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// sizesOf returns the sizes of a sandbox that filters name.
func sizesOf(i sandboxItem) map[string]float64 {
	return map[string]float64{"Cpu": i.CPU, "MemoryGiB": i.Memory, "DiskGiB": i.Disk}
}

// timesOf returns the times of a sandbox that filters name.
func timesOf(i sandboxItem) map[string]time.Time {
	times := map[string]time.Time{"createdAt": i.CreatedAt, "lastEvent": i.UpdatedAt}
	if i.AutoDestroyAt != nil {
		times["autoDestroyAt"] = *i.AutoDestroyAt
	}
	return times
}

// accepts reports whether a filter selects a sandbox, whose labels match already.
func (want sandboxFilter) accepts(i sandboxItem) bool {
	sizes, times := sizesOf(i), timesOf(i)
	for name, least := range want.least {
		if sizes[name] < least {
			return false
		}
	}
	for name, most := range want.most {
		if sizes[name] > most {
			return false
		}
	}
	for name, after := range want.after {
		if at, ok := times[name]; !ok || !at.After(after) {
			return false
		}
	}
	for name, before := range want.before {
		if at, ok := times[name]; !ok || !at.Before(before) {
			return false
		}
	}
	oneOf := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	return strings.HasPrefix(string(i.ID), want.id) && strings.HasPrefix(i.Name, want.name) && oneOf(want.states, i.State) &&
		oneOf(want.snapshots, i.Snapshot) && oneOf(want.regions, region) && oneOf(want.classes, sandboxClass) &&
		(want.public == nil || *want.public == i.Public) && (want.recover == nil || *want.recover == i.Recoverable)
}

// parseFilter reads a filter from a query.
func parseFilter(query url.Values) (want sandboxFilter, err error) {
	want.id, want.name = query.Get("id"), query.Get("name")
	want.states, want.snapshots = splitValues(query["states"]), splitValues(query["snapshots"])
	want.regions = splitValues(slices.Concat(query["regionIds"], query["regions"]))
	if text := query.Get("labels"); text != "" {
		if err := json.Unmarshal([]byte(text), &want.labels); err != nil {
			return want, sandpit.Errorf(sandpit.Invalid, "labels: want a JSON object of strings")
		}
	}
	for key := range want.labels {
		if strings.HasPrefix(key, serverLabels) {
			return want, sandpit.Errorf(sandpit.Invalid, "label %.100q: names that begin with %q are the server's", key, serverLabels)
		}
	}
	want.classes = splitValues(query["sandboxClasses"])
	if want.public, err = parseBool(query, "isPublic"); err != nil {
		return want, err
	}
	if want.recover, err = parseBool(query, "isRecoverable"); err != nil {
		return want, err
	}
	if err := want.parseBounds(query); err != nil {
		return want, err
	}
	return want, want.parseOrder(query)
}

// parseBool reads a parameter that is true or false; nil if it is missing.
func parseBool(query url.Values, name string) (*bool, error) {
	text := query.Get(name)
	if text == "" {
		return nil, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%s %.40q: want true or false", name, text)
	}
	return &value, nil
}

// parseBounds reads the bounds of sizes and times.
func (want *sandboxFilter) parseBounds(query url.Values) error {
	want.least, want.most = map[string]float64{}, map[string]float64{}
	for name := range sizesOf(sandboxItem{}) {
		for prefix, to := range map[string]map[string]float64{"min": want.least, "max": want.most} {
			text := query.Get(prefix + name)
			if text == "" {
				continue
			}
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return sandpit.Errorf(sandpit.Invalid, "%s%s %.40q: want a number", prefix, name, text)
			}
			to[name] = n
		}
	}
	want.after, want.before = map[string]time.Time{}, map[string]time.Time{}
	for _, name := range []string{"createdAt", "lastEvent", "autoDestroyAt"} {
		for suffix, to := range map[string]map[string]time.Time{"After": want.after, "Before": want.before} {
			text := query.Get(name + suffix)
			if text == "" {
				continue
			}
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return sandpit.Errorf(sandpit.Invalid, "%s%s %.60q: want a time in the format of RFC 3339", name, suffix, text)
			}
			to[name] = at
		}
	}
	return nil
}

// The fields by which lists are sorted.
const (
	sortName     = "name"
	sortCPU      = "cpu"
	sortMemory   = "memoryGib"
	sortDisk     = "diskGib"
	sortActivity = "lastActivityAt"
	sortCreated  = "createdAt"
)

// parseOrder reads the order of a list: by default the latest first.
func (want *sandboxFilter) parseOrder(query url.Values) error {
	want.sort = cmp.Or(query.Get("sort"), sortCreated)
	if !slices.Contains([]string{sortName, sortCPU, sortMemory, sortDisk, sortActivity, sortCreated, "id", "state", "snapshot", "updatedAt", "lastEventAt"}, want.sort) {
		return sandpit.Errorf(sandpit.Invalid, "sort %.40q: unknown field", want.sort)
	}
	switch order := cmp.Or(query.Get("order"), "desc"); order {
	case "asc":
	case "desc":
		want.descending = true
	default:
		return sandpit.Errorf(sandpit.Invalid, "order %.40q: want asc or desc", order)
	}
	return nil
}

// sortTime is a format of times whose texts sort as the times do.
const sortTime = "2006-01-02T15:04:05.000000000Z"

// positionOf returns the place of a sandbox in a list.
func (want sandboxFilter) positionOf(i sandboxItem) position {
	number := func(n float64) string { return fmt.Sprintf("%020.6f", n) }
	p := position{id: string(i.ID)}
	switch want.sort {
	case sortName:
		p.key = i.Name
	case sortCPU:
		p.key = number(i.CPU)
	case sortMemory:
		p.key = number(i.Memory)
	case sortDisk:
		p.key = number(i.Disk)
	case sortActivity:
		if i.LastActivityAt != nil {
			p.key = i.LastActivityAt.Format(sortTime)
		}
	case "state":
		p.key = i.State
	case "snapshot":
		p.key = i.Snapshot
	case "updatedAt", "lastEventAt":
		p.key = i.UpdatedAt.Format(sortTime)
	case sortCreated:
		p.key = i.CreatedAt.Format(sortTime)
	}
	return p
}

// position is the place of a sandbox in a sorted list.
type position struct{ key, id string }

func (want sandboxFilter) compare(a, b position) int {
	order := cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.id, b.id))
	if want.descending {
		return -order
	}
	return order
}

// String returns a place as a cursor.
func (p position) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.id + "_" + p.key))
}

func parsePosition(cursor string) (position, error) {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	id, key, _ := strings.Cut(string(raw), "_")
	if err != nil || sandpit.ID(id).Validate() != nil {
		return position{}, sandpit.Errorf(sandpit.Invalid, "invalid cursor %.100q", cursor)
	}
	return position{key, id}, nil
}

// splitValues returns the values of a parameter, which clients repeat or separate by commas.
func splitValues(list []string) (all []string) {
	for _, text := range list {
		for value := range strings.SplitSeq(text, ",") {
			if value != "" {
				all = append(all, value)
			}
		}
	}
	return all
}

// parseNumber reads a number from 1 of a query, or returns the default.
func parseNumber(query url.Values, name string, usual, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %.40q: want 1 to %d", name, text, most)
	}
	return n, nil
}
