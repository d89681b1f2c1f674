// Package anthropic asks models through Anthropic's messages API.
package anthropic

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// DefaultBaseURL is Anthropic's own API.
const DefaultBaseURL = "https://api.anthropic.com"

// defaultVersion is the version of the API that this package speaks.
const defaultVersion = "2023-06-01"

// defaultMaxTokens bounds responses if nothing else does: the API requires a bound, and all of its
// models permit this one.
const defaultMaxTokens = 4096

// Options configure a Model. The zero value of a field means its default.
type Options struct {
	// Model is the vendor's name of the model. It is required.
	Model string
	// BaseURL is the address to which /v1/messages is appended. It may end in /v1.
	// Default: DefaultBaseURL.
	BaseURL string
	// Key is the API key. Default: none is sent, for servers of one's own.
	Key string
	// APIVersion is the header anthropic-version. Default: "2023-06-01".
	APIVersion string
	// Window is how many tokens a request and its response may have together. Default: unknown.
	Window int
	// MaxTokens bounds responses whose request has no bound. Default: 4096.
	MaxTokens int
	// Temperature is that of requests that have none. Above 1 it counts as 1, the most that the API
	// accepts. Newer models accept none. Default: the vendor's.
	Temperature *float64
	// NoCache does not ask for a cache of the conversation. The cache makes repeated beginnings of
	// conversations cheaper, and writing it more expensive. Default: it is asked for.
	NoCache bool
	// Calls says how requests are sent.
	Calls model.Calls
}

// Model is a model with Anthropic's API.
type Model struct {
	o        Options
	endpoint *endpoint.Endpoint
	// cold is set when the API has refused a temperature, as it does for its newer models, and free when
	// it has refused tool_choice, as it does while the model thinks.
	cold, free atomic.Bool
}

// New returns a model. It opens no connection.
//
// Invalid: an option.
func New(o Options) (*Model, error) {
	if o.Model == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "the model has no name; set llm.model")
	}
	base := strings.TrimRight(cmp.Or(o.BaseURL, DefaultBaseURL), "/")
	e, err := endpoint.New(endpoint.Options{
		URL: strings.TrimSuffix(base, "/v1") + "/v1/messages", Key: o.Key, KeyHeader: "X-Api-Key",
		Header: http.Header{"Anthropic-Version": {cmp.Or(o.APIVersion, defaultVersion)}}, Calls: o.Calls,
	})
	if err != nil {
		return nil, err
	}
	return &Model{o: o, endpoint: e}, nil
}

// Name implements model.Model.
func (m *Model) Name() string { return m.o.Model }

// Window implements model.Model.
func (m *Model) Window() int { return m.o.Window }

// Generate implements model.Model. If the API refuses the temperature or MustCall, the request is sent
// again without it, and it is left out from then on.
func (m *Model) Generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	for {
		res, err := m.generate(ctx, r, onDelta)
		if !m.noteRefusal(err) {
			return res, err
		}
	}
}

// noteRefusal reports whether a request was refused because of an optional parameter that has been sent
// until now.
func (m *Model) noteRefusal(err error) bool {
	p, ok := errors.AsType[*model.APIError](err)
	if !ok || p.Status != http.StatusBadRequest {
		return false
	}
	return strings.Contains(p.Message, "temperature") && m.cold.CompareAndSwap(false, true) ||
		strings.Contains(p.Message, "tool_choice") && m.free.CompareAndSwap(false, true)
}

func (m *Model) generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	request, err := m.newRequest(r)
	if err != nil {
		return model.Response{}, err
	}
	reader, err := endpoint.Stream(ctx, m.endpoint, request, func() *reader { return &reader{onDelta: onDelta} })
	if err != nil {
		return model.Response{}, err
	}
	return reader.response()
}
