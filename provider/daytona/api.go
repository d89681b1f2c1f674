package daytona

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// clientVersion is the version of Daytona's clients whose protocol this package speaks. With a
// version before 0.167 the toolbox merges the two outputs of a command.
const clientVersion = "0.190.0"

// box is a sandbox as the control API describes it.
type box struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	State         state             `json:"state"`
	DesiredState  state             `json:"desiredState"`
	ErrorReason   string            `json:"errorReason"`
	Recoverable   bool              `json:"recoverable"`
	Labels        map[string]string `json:"labels"`
	Env           map[string]string `json:"env"`
	CPU           float64           `json:"cpu"`
	Memory        float64           `json:"memory"` // GiB
	Disk          float64           `json:"disk"`   // GiB
	AutoStop      *int64            `json:"autoStopInterval"`
	AutoArchive   *int64            `json:"autoArchiveInterval"`
	AutoDelete    *int64            `json:"autoDeleteInterval"`
	AutoDestroyAt string            `json:"autoDestroyAt"`
	CreatedAt     string            `json:"createdAt"`
	ToolboxURL    string            `json:"toolboxProxyUrl"`
}

// parseTime returns a time of the API, or the zero time for anything else.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// createRequest is the body of a request for a sandbox.
type createRequest struct {
	networkSettings

	Name        string            `json:"name"`
	Snapshot    string            `json:"snapshot,omitempty"`
	Build       *buildInfo        `json:"buildInfo,omitempty"`
	Env         map[string]string `json:"env"`
	Labels      map[string]string `json:"labels"`
	Public      bool              `json:"public"`
	Target      string            `json:"target,omitempty"`
	CPU         float64           `json:"cpu,omitempty"`
	Memory      float64           `json:"memory,omitempty"`
	Disk        float64           `json:"disk,omitempty"`
	AutoStop    int64             `json:"autoStopInterval"`
	AutoArchive int64             `json:"autoArchiveInterval"`
	AutoDelete  int64             `json:"autoDeleteInterval"`
	TTL         int64             `json:"ttlMinutes,omitempty"`
	Volumes     []volumeMount     `json:"volumes,omitempty"`
}

// buildInfo is a Dockerfile. With one line, it names an image.
type buildInfo struct {
	Dockerfile string `json:"dockerfileContent"`
}

// networkSettings are what a sandbox may reach.
type networkSettings struct {
	BlockAll bool    `json:"networkBlockAll"`
	Ranges   *string `json:"networkAllowList,omitempty"`
	Domains  *string `json:"domainAllowList,omitempty"`
}

// volumeMount is a mount of a volume.
type volumeMount struct {
	Volume string `json:"volumeId"`
	Path   string `json:"mountPath"`
}

// control calls the control API.
type control struct{ client *cloudapi.Client }

// header returns the header of all calls.
func (o Options) header() http.Header {
	return http.Header{
		"Authorization":         {"Bearer " + o.Key},
		"X-Daytona-Source":      {"sandpit"},
		"X-Daytona-Sdk-Version": {clientVersion},
		// Older toolboxes know the two outputs of a command by this.
		"X-Daytona-Split-Output": {"true"},
	}
}

func newControl(o Options) (control, error) {
	client, err := cloudapi.New(cloudapi.Options{
		Provider: providerName, Vendor: "Daytona", Endpoint: o.Endpoint, Header: o.header(), KeyHint: keyHint,
		Timeout: o.CallTimeout, Transport: o.Transport,
	})
	return control{client}, err
}

// call carries out a call and adds what the API's texts mean to an error.
func (c control) call(ctx context.Context, call cloudapi.Call) error {
	_, err := c.client.Do(ctx, call)
	return refineError(err)
}

func sandboxPath(ref string, rest ...string) string {
	parts := []string{"/sandbox", url.PathEscape(ref)}
	for _, part := range rest {
		parts = append(parts, url.PathEscape(part))
	}
	return strings.Join(parts, "/")
}

func (c control) createBox(ctx context.Context, id sandpit.ID, r createRequest) (b box, err error) {
	// The name is unique, so a second attempt cannot create a second sandbox.
	err = c.call(ctx, cloudapi.Call{Operation: "create", Sandbox: id, Method: http.MethodPost, Path: "/sandbox", Body: r, Into: &b, Timeout: 5 * time.Minute})
	if refusal, ok := errors.AsType[*cloudapi.StatusError](err); ok && r.TTL > 0 && strings.Contains(strings.ToLower(refusal.Message), "ttl") {
		err = asTooLate(err)
	}
	return b, err
}

// getBox returns a sandbox by its ID or name. NotFound.
func (c control) getBox(ctx context.Context, id sandpit.ID, ref string) (b box, err error) {
	err = c.call(ctx, cloudapi.Call{Operation: "get", Sandbox: id, Method: http.MethodGet, Path: sandboxPath(ref), Into: &b})
	return b, err
}

// pageSize is the number of items of a page, the most that the API allows.
const pageSize = 200

// maxPages bounds a list.
const maxPages = 1000

// listBoxes returns all sandboxes with some labels.
func (c control) listBoxes(ctx context.Context, labels map[string]string) (all []box, err error) {
	text, err := json.Marshal(labels)
	if err != nil {
		return nil, err
	}
	cursor := ""
	for range maxPages {
		query := url.Values{"labels": {string(text)}, "limit": {strconv.Itoa(pageSize)}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var answer json.RawMessage
		if err := c.call(ctx, cloudapi.Call{Operation: "list", Method: http.MethodGet, Path: "/sandbox", Query: query, Into: &answer}); err != nil {
			return nil, err
		}
		page, next, err := decodePage(answer)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" || next == cursor {
			return all, nil
		}
		cursor = next
	}
	return nil, sandpit.Errorf(sandpit.Internal, "list: more than %d pages", maxPages)
}

// decodePage decodes a page of a list: an object with a cursor or, from older servers, an array of
// all.
func decodePage(answer json.RawMessage) (items []box, next string, err error) {
	if json.Unmarshal(answer, &items) == nil {
		return items, "", nil
	}
	var page struct {
		Items []box   `json:"items"`
		Next  *string `json:"nextCursor"`
	}
	if err := json.Unmarshal(answer, &page); err != nil {
		return nil, "", sandpit.Errorf(sandpit.Internal, "list: invalid response: %w", err)
	}
	if page.Next != nil {
		next = *page.Next
	}
	return page.Items, next, nil
}

// change requests a change of a sandbox, such as "start".
func (c control) change(ctx context.Context, id sandpit.ID, ref, operation string, rest ...string) (b box, err error) {
	var answer json.RawMessage
	err = c.call(ctx, cloudapi.Call{
		Operation: operation, Sandbox: id, Method: http.MethodPost, Path: sandboxPath(ref, append([]string{operation}, rest...)...), Into: &answer,
	})
	if err == nil {
		_ = json.Unmarshal(answer, &b) // not every change returns the sandbox; its state is read then
	}
	return b, err
}

// deleteBox requests the deletion of a sandbox. A missing one is not an error.
func (c control) deleteBox(ctx context.Context, id sandpit.ID, ref string) error {
	err := c.call(ctx, cloudapi.Call{
		Operation: "delete", Sandbox: id, Method: http.MethodDelete, Path: sandboxPath(ref), Query: url.Values{"force": {"true"}},
		Expected: []int{http.StatusNotFound},
	})
	return err
}

// preview is how a port is reached.
type preview struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

func (c control) getPreview(ctx context.Context, id sandpit.ID, ref string, port int) (v preview, err error) {
	err = c.call(ctx, cloudapi.Call{
		Operation: "get the preview URL", Sandbox: id, Method: http.MethodGet, Path: sandboxPath(ref, "ports", strconv.Itoa(port), "preview-url"), Into: &v,
	})
	return v, err
}

// getInto calls GET and decodes the response.
func (c control) getInto(ctx context.Context, operation, path string, into any) error {
	return c.call(ctx, cloudapi.Call{Operation: operation, Method: http.MethodGet, Path: path, Into: into})
}
