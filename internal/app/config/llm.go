package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// LLM is the [llm] section, or one such as [llm.vision]: a language model for agents.
type LLM struct {
	// APIType is the protocol, one of the LLM constants. Load derives it from the rest if nothing
	// sets it.
	APIType string
	// Model is the vendor's name of the model; for LLMScript, the path of a script.
	Model string
	// BaseURL is the address of the API. "": the vendor's own.
	BaseURL string
	// APIKey is the key for it. "": none.
	APIKey Secret
	// APIVersion is the version of the API, which Azure requires.
	APIVersion string
	// MaxTokens bounds each response. More than zero.
	MaxTokens int
	// MaxInputTokens bounds the input of all requests of one agent together. 0: no bound.
	MaxInputTokens int
	// Window is how many tokens a request and its response may have. 0: by the model's name.
	Window int
	// Temperature is from 0 to 2. Nil: the vendor's default.
	Temperature *float64
}

// The values of LLM.APIType.
const (
	LLMOpenAI    = "openai"    // chat completions
	LLMResponses = "responses" // OpenAI's responses
	LLMAnthropic = "anthropic" // Anthropic's messages
	LLMAzure     = "azure"     // chat completions of Azure
	LLMOllama    = "ollama"    // chat completions of an Ollama on this machine
	LLMScript    = "script"    // a scripted model, without a network
	LLMBedrock   = "aws"       // accepted for files of OpenManus; not supported
)

// The keys of the section [llm], and of those below it.
const (
	KeyLLMType           Key = "llm.api_type"
	KeyLLMModel          Key = "llm.model"
	KeyLLMBaseURL        Key = "llm.base_url"
	KeyLLMKey            Key = "llm.api_key"
	KeyLLMVersion        Key = "llm.api_version"
	KeyLLMMaxTokens      Key = "llm.max_tokens"       //nolint:gosec // the name of a setting
	KeyLLMMaxInputTokens Key = "llm.max_input_tokens" //nolint:gosec // the name of a setting
	KeyLLMWindow         Key = "llm.window"
	KeyLLMTemperature    Key = "llm.temperature"
)

const sectionLLM = "llm"

func llmSettings() []setting {
	return []setting{
		defineSetting(KeyLLMType, func(c *Config) *string { return &c.LLM.APIType }, setLLMType,
			"The protocol of the language model for agents: openai (chat completions, also of vLLM and other servers), responses, anthropic, azure, ollama or script.").
			describedBy("derived from `model` and `base_url`, else `openai`"),
		defineSetting(KeyLLMModel, func(c *Config) *string { return &c.LLM.Model }, setLLMText,
			"The vendor's name of the model; with `api_type = \"script\"`, the path of a script."),
		defineSetting(KeyLLMBaseURL, func(c *Config) *string { return &c.LLM.BaseURL }, setLLMText,
			"The address of the API.").
			describedBy("`OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL` or `AZURE_OPENAI_ENDPOINT`, by `api_type`, else the vendor's"),
		defineSetting(KeyLLMKey, func(c *Config) *Secret { return &c.LLM.APIKey }, setLLMKey,
			"The key for the API. Set it as a variable rather than in a file.").
			describedBy("`OPENAI_API_KEY`, `ANTHROPIC_API_KEY` or `AZURE_OPENAI_API_KEY`, by `api_type`, unless `base_url` is another address than the vendor's"),
		defineSetting(KeyLLMVersion, func(c *Config) *string { return &c.LLM.APIVersion }, setLLMText,
			"The version of the API. Azure requires it.").describedBy("`OPENAI_API_VERSION` with Azure"),
		defineSetting(KeyLLMMaxTokens, func(c *Config) *int { return &c.LLM.MaxTokens }, numberOf("tokens", 1, 1e7),
			"The maximum length of one response, in tokens. 1 to 10000000."),
		defineSetting(KeyLLMMaxInputTokens, func(c *Config) *int { return &c.LLM.MaxInputTokens }, numberOf("tokens", 0, 1e9),
			"The maximum input of all requests of an agent together, in tokens; 0 is no limit."),
		defineSetting(KeyLLMWindow, func(c *Config) *int { return &c.LLM.Window }, numberOf("tokens", 0, 1e9),
			"The maximum length of a request and its response together, in tokens; 0 is the default.").describedBy("known from the name of the model, else unknown"),
		defineSetting(KeyLLMTemperature, func(c *Config) **float64 { return &c.LLM.Temperature }, setTemperature,
			"The temperature, from 0 to 2.").describedBy("the vendor's"),
	}
}

func setLLMType(field *string, v any) error {
	types := []string{"", LLMOpenAI, LLMResponses, LLMAnthropic, LLMAzure, LLMOllama, LLMScript, LLMBedrock}
	text, ok := textOf(v)
	if text = strings.ToLower(text); !ok || !slices.Contains(types, text) {
		return fmt.Errorf("%s is not one of %s", shortValue(v), strings.Join(types[1:], ", "))
	}
	*field = text
	return nil
}

// setLLMText takes a text that depends on the vendor. It is looked at when an agent starts, because
// files of OpenManus have samples in their place.
func setLLMText(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || hasControl(text) {
		return fmt.Errorf("%s is not a text in one line", shortValue(v))
	}
	*field = text
	return nil
}

// setLLMKey never shows what is wrong.
func setLLMKey(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || hasControl(text) {
		return errors.New("is not an API key")
	}
	*field = Secret(text)
	return nil
}

func setTemperature(field **float64, v any) error {
	n := math.NaN()
	switch v := v.(type) {
	case float64:
		n = v
	case int64:
		n = float64(v)
	case word:
		if parsed, err := strconv.ParseFloat(string(v), 64); err == nil {
			n = parsed
		}
	}
	if !(n >= 0 && n <= 2) { // also true of NaN
		return fmt.Errorf("%s is not a temperature; use 0 to 2", shortValue(v))
	}
	*field = &n
	return nil
}

// FindLLM returns the section [llm.NAME], or [llm] if name is "".
func (c Config) FindLLM(name string) (LLM, bool) {
	if name == "" {
		return c.LLM, true
	}
	named, ok := c.NamedLLMs[name]
	return named, ok
}

// namedValue is one line of a section such as [llm.vision].
type namedValue struct {
	section string
	key     Key // as in [llm]
	value   any
	line    int
}

var llmNamePattern = pattern.New(`^[A-Za-z0-9_-]{1,64}$`)

// loadNamedLLM takes a section such as [llm.vision]. It is put together when [llm] is known.
func (f *file) loadNamedLLM(sub entry) {
	var t table
	if !llmNamePattern().MatchString(sub.name) {
		f.addProblem(sub, Key(sectionLLM+"."+sub.name), "is not the name of a model; use letters, digits, '_' and '-'")
		return
	}
	if err := f.meta.PrimitiveDecode(sub.raw, &t); err != nil {
		f.addProblem(sub, Key(sectionLLM+"."+sub.name), "is not a section: "+redactMessage(err.Error()))
		return
	}
	f.namedLLMs = append(f.namedLLMs, namedValue{section: sub.name})
	for _, e := range f.listEntries(t) {
		key := Key(sectionLLM + "." + e.name)
		if _, ok := findSetting(key); !ok {
			f.addProblem(e, Key(sectionLLM+"."+sub.name+"."+e.name), unknownKey(e.name, namesIn(sectionLLM)))
			continue
		}
		f.namedLLMs = append(f.namedLLMs, namedValue{sub.name, key, e.value, e.line})
	}
}

// fillLLM puts the named sections together and adds what the variables of vendors say.
func (l *loader) fillLLM() {
	base := l.cfg.LLM
	for _, v := range l.namedLLMs {
		if v.key == "" {
			if l.cfg.NamedLLMs == nil {
				l.cfg.NamedLLMs = map[string]LLM{}
			}
			l.cfg.NamedLLMs[v.section] = base
			continue
		}
		l.applyNamed(v)
	}
	for name, named := range l.cfg.NamedLLMs {
		prefix := sectionLLM + "." + name + "."
		// A key is for the address that it is configured with.
		if l.cfg.Sources[Key(prefix+"api_key")] == "" && !isSameHost(named, base) {
			named.APIKey = ""
		}
		l.cfg.NamedLLMs[name] = l.withVendor(named)
	}
	l.cfg.LLM = l.withVendor(base)
}

// applyNamed sets one value of a named section.
func (l *loader) applyNamed(v namedValue) {
	key := Key(sectionLLM + "." + v.section + strings.TrimPrefix(string(v.key), sectionLLM))
	s, ok := findSetting(v.key)
	if !ok {
		return // loadNamedLLM has reported it
	}
	var c Config
	c.LLM = l.cfg.NamedLLMs[v.section]
	if err := s.set(&c, v.value); err != nil {
		l.problems.addProblem(Problem{Source: l.cfg.File, Line: v.line, Key: key, Text: err.Error()})
		return
	}
	l.cfg.NamedLLMs[v.section] = c.LLM
	l.cfg.Sources[key] = fmt.Sprintf("%s:%d", l.cfg.File, v.line)
}

// isSameHost reports whether two sections mean the same server.
func isSameHost(a, b LLM) bool {
	return hostOf(a.BaseURL) == hostOf(b.BaseURL) && (a.BaseURL != "" || vendorType(a) == vendorType(b))
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return strings.ToLower(u.Host)
}

// vendorType returns the protocol of a section, also if nothing sets it.
func vendorType(m LLM) string {
	host := hostOf(m.BaseURL)
	switch {
	case m.APIType != "":
		return m.APIType
	case isBelow(host, "anthropic.com"), m.BaseURL == "" && strings.HasPrefix(m.Model, "claude"):
		return LLMAnthropic
	case isBelow(host, "openai.azure.com"):
		return LLMAzure
	}
	return LLMOpenAI
}

func isBelow(host, domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }

// vendors are the variables of vendors, and the domains of their own APIs.
var vendors = map[string]struct{ key, baseURL, domain string }{
	LLMOpenAI:    {"OPENAI_API_KEY", "OPENAI_BASE_URL", "openai.com"},
	LLMResponses: {"OPENAI_API_KEY", "OPENAI_BASE_URL", "openai.com"},
	LLMAnthropic: {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "anthropic.com"},
	LLMAzure:     {"AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "openai.azure.com"},
}

// withVendor adds what the variables of the vendor say. A vendor's key is for its own address, or
// for that of its variable: a file must not be able to send it elsewhere.
func (l *loader) withVendor(m LLM) LLM {
	m.APIType = vendorType(m)
	vendor := vendors[m.APIType]
	mayUseKey := m.BaseURL == "" || m.BaseURL == l.env[vendor.baseURL] || isBelow(hostOf(m.BaseURL), vendor.domain)
	m.BaseURL = cmp.Or(m.BaseURL, l.env[vendor.baseURL])
	if m.APIKey == "" && mayUseKey && vendor.key != "" {
		m.APIKey = Secret(l.env[vendor.key])
	}
	if m.APIType == LLMAzure {
		m.APIVersion = cmp.Or(m.APIVersion, l.env["OPENAI_API_VERSION"])
	}
	return m
}
