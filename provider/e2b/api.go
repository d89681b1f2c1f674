package e2b

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// api calls E2B's API.
type api struct {
	client *cloudapi.Client
	create time.Duration // the time for creating or resuming a sandbox
}

// createBody is the body of a request for a sandbox.
type createBody struct {
	Template  string            `json:"templateID"`
	Timeout   int64             `json:"timeout"`
	Secure    bool              `json:"secure"`
	Metadata  map[string]string `json:"metadata"`
	Env       map[string]string `json:"envVars,omitempty"`
	Internet  bool              `json:"allow_internet_access"`
	Network   *networkBody      `json:"network,omitempty"`
	AutoPause bool              `json:"autoPause"`
	Volumes   []volumeMount     `json:"volumeMounts,omitempty"`
	// KeepMemory says whether the automatic pause keeps the memory. Default: it does.
	KeepMemory *bool `json:"autoPauseMemory,omitempty"`
}

// networkBody is the network policy of a sandbox.
type networkBody struct {
	Allow  []string `json:"allowOut,omitempty"`
	Deny   []string `json:"denyOut,omitempty"`
	Public *bool    `json:"allowPublicTraffic,omitempty"`
}

// volumeMount is a mount of a volume.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// access is what a client needs to reach a sandbox.
type access struct {
	ID           string `json:"sandboxID"`
	GuestToken   string `json:"envdAccessToken"`
	TrafficToken string `json:"trafficAccessToken"`
	Domain       string `json:"domain"`
}

// The states of the API.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// item describes a sandbox.
type item struct {
	ID        string            `json:"sandboxID"`
	StartedAt time.Time         `json:"startedAt"`
	EndAt     time.Time         `json:"endAt"`
	State     string            `json:"state"`
	CPUs      float64           `json:"cpuCount"`
	Memory    int64             `json:"memoryMB"`
	Disk      int64             `json:"diskSizeMB"`
	Metadata  map[string]string `json:"metadata"`
	Lifecycle struct {
		OnTimeout string `json:"onTimeout"`
	} `json:"lifecycle"`
}

// measurement is one measurement of a sandbox.
type measurement struct {
	Unix      int64   `json:"timestampUnix"`
	CPUs      float64 `json:"cpuCount"`
	CPU       float64 `json:"cpuUsedPct"`
	Memory    int64   `json:"memUsed"`
	MemoryAll int64   `json:"memTotal"`
	Disk      int64   `json:"diskUsed"`
	DiskAll   int64   `json:"diskTotal"`
}

// listPage is how many sandboxes one call of the list returns, and maxPages bounds the calls.
const (
	listPage = 100
	maxPages = 1000
)

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func sandboxPath(cloudID string) string { return "/sandboxes/" + url.PathEscape(cloudID) }

// createSandbox creates a sandbox. Invalid with ErrDeadlineTooLate: its timeout is longer than the cloud allows. If the response was lost, the sandbox may exist: see cloudapi.MayHaveHappened.
func (a *api) createSandbox(ctx context.Context, id sandpit.ID, body createBody) (out access, err error) {
	_, err = a.client.Do(ctx, cloudapi.Call{
		Operation: "create", Sandbox: id, Method: http.MethodPost, Path: "/sandboxes", Body: body, Into: &out, Timeout: a.create,
	})
	return out, asTooLate(err)
}

// asTooLate marks the refusal of a timeout that is longer than the account allows: status 400 with a text such as
// "Timeout cannot be greater than 1 hours".
func asTooLate(err error) error {
	refusal, ok := errors.AsType[*cloudapi.StatusError](err)
	if !ok || refusal.Status != http.StatusBadRequest {
		return err
	}
	text := strings.ToLower(refusal.Message)
	says := func(word string) bool { return strings.Contains(text, word) }
	if !says("timeout") || !slices.ContainsFunc([]string{"greater than", "longer than", "exceed", "at most", "maximum"}, says) {
		return err
	}
	return sandpit.Errorf(sandpit.Invalid, "%w: %w", sandpit.ErrDeadlineTooLate, err)
}

// connectSandbox returns the access to a sandbox, and resumes it if it is paused. It does not move the expiry of a running
// sandbox to an earlier time. NotFound.
func (a *api) connectSandbox(ctx context.Context, id sandpit.ID, cloudID string, timeout time.Duration) (out access, err error) {
	_, err = a.client.Do(ctx, cloudapi.Call{
		Operation: "connect", Sandbox: id, Method: http.MethodPost, Path: sandboxPath(cloudID) + "/connect", Repeatable: true,
		Body: map[string]int64{"timeout": seconds(timeout)}, Into: &out, Timeout: a.create,
	})
	return out, err
}

// describeSandbox describes a sandbox. NotFound.
func (a *api) describeSandbox(ctx context.Context, id sandpit.ID, cloudID string) (out item, err error) {
	_, err = a.client.Do(ctx, cloudapi.Call{
		Operation: "describe", Sandbox: id, Method: http.MethodGet, Path: sandboxPath(cloudID), Into: &out,
	})
	return out, err
}

// deleteSandbox deletes a sandbox, if it exists.
func (a *api) deleteSandbox(ctx context.Context, id sandpit.ID, cloudID string) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "delete", Sandbox: id, Method: http.MethodDelete, Path: sandboxPath(cloudID), Expected: []int{http.StatusNotFound, http.StatusGone},
	})
	return err
}

// pauseSandbox pauses a sandbox, with or without its memory. NotFound. Conflict: it is paused.
//
// The call is not repeated when its outcome is unknown: the second answer could not be told from that about a sandbox
// that was paused before.
func (a *api) pauseSandbox(ctx context.Context, id sandpit.ID, cloudID string, memory bool) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "pause", Sandbox: id, Method: http.MethodPost, Path: sandboxPath(cloudID) + "/pause",
		Body: map[string]bool{"memory": memory}, Timeout: a.create,
	})
	return err
}

// setTimeout sets the expiry of a running sandbox to a time from now. NotFound. Invalid with ErrDeadlineTooLate: longer
// than the cloud allows.
func (a *api) setTimeout(ctx context.Context, id sandpit.ID, cloudID string, timeout time.Duration) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "renew", Sandbox: id, Method: http.MethodPost, Path: sandboxPath(cloudID) + "/timeout", Repeatable: true,
		Body: map[string]int64{"timeout": seconds(timeout)},
	})
	return asTooLate(err)
}

// setNetwork replaces the network policy of a sandbox.
func (a *api) setNetwork(ctx context.Context, id sandpit.ID, cloudID string, n networkBody) error {
	body := map[string][]string{"allowOut": append([]string{}, n.Allow...), "denyOut": append([]string{}, n.Deny...)}
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "set the network policy", Sandbox: id, Method: http.MethodPut, Path: sandboxPath(cloudID) + "/network", Body: body,
	})
	return err
}

// measureSandbox returns the measurements of the last minute, the oldest first.
func (a *api) measureSandbox(ctx context.Context, id sandpit.ID, cloudID string) (out []measurement, err error) {
	now := time.Now()
	_, err = a.client.Do(ctx, cloudapi.Call{
		Operation: "measure", Sandbox: id, Method: http.MethodGet, Path: sandboxPath(cloudID) + "/metrics", Into: &out,
		Query: url.Values{"start": {strconv.FormatInt(now.Add(-time.Minute).Unix(), 10)}, "end": {strconv.FormatInt(now.Add(time.Minute).Unix(), 10)}},
	})
	return out, err
}

// listSandboxes returns the sandboxes with these metadata, running and paused. The server may ignore the filter, so the
// metadata are compared again.
func (a *api) listSandboxes(ctx context.Context, metadata map[string]string) (all []item, err error) {
	pairs := url.Values{}
	for key, value := range metadata {
		pairs.Set(key, value)
	}
	// The pairs are encoded here, and again as a part of the query: the API expects that.
	query := url.Values{"state": {stateRunning + "," + statePaused}, "limit": {strconv.Itoa(listPage)}, "metadata": {pairs.Encode()}}
	seen := make(map[string]bool)
	for range maxPages {
		var page []item
		response, err := a.client.Do(ctx, cloudapi.Call{Operation: "list", Method: http.MethodGet, Path: "/v2/sandboxes", Query: query, Into: &page})
		if err != nil {
			return nil, err
		}
		for _, one := range page {
			if !seen[one.ID] && hasPairs(one.Metadata, metadata) {
				seen[one.ID] = true
				all = append(all, one)
			}
		}
		next := response.Header.Get("X-Next-Token")
		if next == "" {
			return all, nil
		}
		query.Set("nextToken", next)
	}
	return nil, sandpit.Errorf(sandpit.Internal, "provider e2b: list: more than %d pages", maxPages)
}

// cloudSnapshot is a snapshot as the API describes it.
type cloudSnapshot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// createSnapshot saves a running sandbox under a name. NotFound.
func (a *api) createSnapshot(ctx context.Context, id sandpit.ID, cloudID, name string) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "snapshot", Sandbox: id, Method: http.MethodPost, Path: sandboxPath(cloudID) + "/snapshots",
		Body: map[string]string{"name": name}, Timeout: a.create,
	})
	return err
}

// listSnapshots returns all snapshots of the account.
func (a *api) listSnapshots(ctx context.Context) (all []cloudSnapshot, err error) {
	query := url.Values{"limit": {strconv.Itoa(listPage)}}
	for range maxPages {
		var page []cloudSnapshot
		response, err := a.client.Do(ctx, cloudapi.Call{Operation: "list the snapshots", Method: http.MethodGet, Path: "/snapshots", Query: query, Into: &page})
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		next := response.Header.Get("X-Next-Token")
		if next == "" {
			return all, nil
		}
		query.Set("nextToken", next)
	}
	return nil, sandpit.Errorf(sandpit.Internal, "provider e2b: list the snapshots: more than %d pages", maxPages)
}

// deleteSnapshot deletes a snapshot, if it exists: to the API it is a template.
func (a *api) deleteSnapshot(ctx context.Context, cloudID string) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "delete a snapshot", Method: http.MethodDelete, Path: "/templates/" + url.PathEscape(cloudID), Expected: []int{http.StatusNotFound},
	})
	return err
}

// listVolumes returns all volumes of the account.
func (a *api) listVolumes(ctx context.Context) (all []cloudVolume, err error) {
	_, err = a.client.Do(ctx, cloudapi.Call{Operation: "list the volumes", Method: http.MethodGet, Path: "/volumes", Into: &all})
	return all, err
}

// createVolume creates a volume. Conflict or AlreadyExists: there is one with the name.
func (a *api) createVolume(ctx context.Context, name string) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "create a volume", Method: http.MethodPost, Path: "/volumes", Body: map[string]string{"name": name},
	})
	return err
}

// deleteVolume deletes a volume, if it exists. Conflict: a sandbox mounts it.
func (a *api) deleteVolume(ctx context.Context, cloudID string) error {
	_, err := a.client.Do(ctx, cloudapi.Call{
		Operation: "delete a volume", Method: http.MethodDelete, Path: "/volumes/" + url.PathEscape(cloudID), Expected: []int{http.StatusNotFound},
	})
	return err
}

func hasPairs(all, wanted map[string]string) bool {
	for key, value := range wanted {
		if all[key] != value {
			return false
		}
	}
	return true
}
