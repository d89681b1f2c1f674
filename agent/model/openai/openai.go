// Package openai asks models through OpenAI's APIs: chat completions, which many vendors and
// servers have (Azure, Ollama, vLLM, llama.cpp), and responses.
package openai

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// DefaultBaseURL is OpenAI's own API.
const DefaultBaseURL = "https://api.openai.com/v1"

// API is one of the two protocols.
type API string

// The protocols.
const (
	Chat      API = "chat"      // POST /chat/completions
	Responses API = "responses" // POST /responses
)

// Options configure a Model. The zero value of a field means its default.
type Options struct {
	// Model is the vendor's name of the model. It is required.
	Model string
	// BaseURL is the address to which /chat/completions or /responses is appended.
	// Default: DefaultBaseURL.
	BaseURL string
	// Key is the API key. Default: none is sent, for servers of one's own.
	Key string
	// API is the protocol. Default: Chat.
	API API
	// Azure sends the key as Azure expects it, and adds the deployment, which is named like the
	// model, to a BaseURL that has none.
	Azure bool
	// APIVersion is the parameter api-version, which Azure requires. Default: none.
	APIVersion string
	// Window is how many tokens a request and its response may have together. Default: unknown.
	Window int
	// MaxTokens bounds responses whose request has no bound. Default: the vendor's.
	MaxTokens int
	// Temperature is that of requests that have none. Default: the vendor's.
	Temperature *float64
	// Calls says how requests are sent.
	Calls model.Calls
}

// Model is a model with one of OpenAI's APIs.
type Model struct {
	o        Options
	endpoint *endpoint.Endpoint

	mu sync.Mutex
	// refused are the optional parameters that the server does not accept.
	refused map[string]bool
}

// New returns a model. It opens no connection.
//
// Invalid: an option.
func New(o Options) (*Model, error) {
	if o.Model == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "the model has no name; set llm.model")
	}
	o.API = cmp.Or(o.API, Chat)
	path, ok := map[API]string{Chat: "/chat/completions", Responses: "/responses"}[o.API]
	if !ok {
		return nil, sandpit.Errorf(sandpit.Invalid, "unknown API %q; use chat or responses", string(o.API))
	}
	address, err := o.address(path)
	if err != nil {
		return nil, err
	}
	to := endpoint.Options{URL: address, Key: o.Key, KeyHeader: "Authorization", KeyPrefix: "Bearer ", Header: http.Header{}, Calls: o.Calls}
	if o.Azure {
		to.KeyHeader, to.KeyPrefix = "Api-Key", ""
	}
	e, err := endpoint.New(to)
	if err != nil {
		return nil, err
	}
	m := &Model{o: o, endpoint: e, refused: map[string]bool{}}
	// OpenAI's newer models refuse max_tokens, and other servers do not know its successor.
	if u, err := url.Parse(address); err == nil && (u.Hostname() == "api.openai.com" || o.Azure) {
		m.refused["max_tokens"] = true
	} else {
		m.refused["max_completion_tokens"] = true
	}
	return m, nil
}

// address returns the URL of requests.
func (o Options) address(path string) (string, error) {
	u, err := url.Parse(strings.TrimRight(cmp.Or(o.BaseURL, DefaultBaseURL), "/"))
	if err != nil {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid base URL of the model; use for example %s", DefaultBaseURL)
	}
	switch {
	case o.Azure && o.BaseURL == "":
		return "", sandpit.Errorf(sandpit.Invalid, "Azure has no common address; set llm.base_url to https://NAME.openai.azure.com")
	case o.Azure && !strings.Contains(u.Path, "/deployments/") && !strings.HasSuffix(u.Path, "/v1") && o.API == Chat:
		if !strings.HasSuffix(u.Path, "/openai") {
			u = u.JoinPath("openai")
		}
		u = u.JoinPath("deployments", o.Model)
	}
	u = u.JoinPath(path)
	if o.APIVersion != "" {
		query := u.Query()
		query.Set("api-version", o.APIVersion)
		u.RawQuery = query.Encode()
	}
	return u.String(), nil
}

// Name implements model.Model.
func (m *Model) Name() string { return m.o.Model }

// Window implements model.Model.
func (m *Model) Window() int { return m.o.Window }

// Generate implements model.Model. A request that is refused because of an optional parameter is
// sent again without it, and the parameter is left out from then on.
func (m *Model) Generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	if len(r.Messages) == 0 {
		return model.Response{}, sandpit.Errorf(sandpit.Invalid, "the conversation has no message")
	}
	r.MaxTokens = cmp.Or(r.MaxTokens, m.o.MaxTokens)
	if r.Temperature == nil {
		r.Temperature = m.o.Temperature
	}
	for range optional {
		res, err := m.generate(ctx, r, onDelta)
		if !m.noteRefusal(err) {
			return res, err
		}
	}
	return m.generate(ctx, r, onDelta)
}

func (m *Model) generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	if m.o.API == Responses {
		reader, err := endpoint.Stream(ctx, m.endpoint, m.newResponsesRequest(r), func() *responsesReader { return &responsesReader{sender: sender{onDelta: onDelta}} })
		if err != nil {
			return model.Response{}, err
		}
		return reader.response()
	}
	reader, err := endpoint.Stream(ctx, m.endpoint, m.newChatRequest(r), func() *chatReader { return &chatReader{sender: sender{onDelta: onDelta}} })
	if err != nil {
		return model.Response{}, err
	}
	return reader.response(), nil
}

// optional are the parameters without which a request still has its meaning.
var optional = []string{"stream_options", "max_tokens", "max_completion_tokens", "temperature", "include", "tool_choice"}

// noteRefusal reports whether a request was refused because of an optional parameter that has
// been sent until now.
func (m *Model) noteRefusal(err error) bool {
	p, ok := errors.AsType[*model.APIError](err)
	if !ok || p.Status != http.StatusBadRequest && p.Status != http.StatusUnprocessableEntity || errors.Is(err, model.ErrTooLong) {
		return false
	}
	i := slices.IndexFunc(optional, func(name string) bool { return p.Param == name || strings.HasPrefix(p.Param, name+".") })
	if i < 0 {
		i = slices.IndexFunc(optional, func(name string) bool { return isRefusalOf(p.Message, name) })
	}
	if i < 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	name := optional[i]
	if m.refused[name] {
		return false
	}
	m.refused[name] = true
	switch name {
	case "max_tokens":
		delete(m.refused, "max_completion_tokens")
	case "max_completion_tokens":
		delete(m.refused, "max_tokens")
	}
	return true
}

// isRefusalOf reports whether the text of an error says that a parameter is not supported.
func isRefusalOf(message, name string) bool {
	message = strings.ToLower(message)
	if name == "include" && strings.Contains(message, "encrypted content is not supported") {
		return true
	}
	return strings.Contains(message, name) && slices.ContainsFunc(
		[]string{"unsupported", "not support", "unknown", "unrecognized", "not permitted", "unexpected", "not allowed"},
		func(word string) bool { return strings.Contains(message, word) })
}

// accepts reports whether the server accepts an optional parameter, as far as is known.
func (m *Model) accepts(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.refused[name]
}

// sender hands parts of a message to the caller.
type sender struct {
	onDelta   func(model.Delta)
	delivered bool
}

func (s *sender) send(d model.Delta) {
	if s.onDelta != nil && d != (model.Delta{}) {
		s.delivered = true
		s.onDelta(d)
	}
}

// Delivered implements endpoint.Reader.
func (s *sender) Delivered() bool { return s.delivered }
