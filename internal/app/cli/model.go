package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/anthropic"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
	modelscript "github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
)

// ollamaURL is where an Ollama on this machine serves the protocol of OpenAI.
const ollamaURL = "http://127.0.0.1:11434/v1"

// openModel returns the model of the section [llm.NAME], or of [llm] if name is "". It opens no
// connection.
//
// NotFound: there is no such section. Invalid: the section lacks something. Unsupported: the
// protocol.
func openModel(c config.Config, name string) (model.Model, error) {
	o, ok := c.FindLLM(name)
	if !ok {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "no model %q is configured", name), "add a section [llm."+name+"] to the configuration")
	}
	if o.Model == "" {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "no model is configured"), "set llm.model in the configuration, or SANDPIT_LLM_MODEL")
	}
	switch o.APIType {
	case config.LLMAnthropic:
		return anthropic.New(anthropic.Options{
			Model: o.Model, BaseURL: o.BaseURL, Key: o.APIKey.Reveal(), APIVersion: o.APIVersion, Window: windowOf(o),
			MaxTokens: o.MaxTokens, Temperature: o.Temperature,
		})
	case config.LLMOpenAI, config.LLMResponses, config.LLMAzure, config.LLMOllama:
		return openai.New(toOpenAI(o))
	case config.LLMScript:
		return modelscript.Load(o.Model)
	}
	return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "llm.api_type %q is not supported", o.APIType),
		"use a server that has the protocol of OpenAI or Anthropic, and set llm.base_url to its address")
}

func toOpenAI(o config.LLM) openai.Options {
	to := openai.Options{
		Model: o.Model, BaseURL: o.BaseURL, Key: o.APIKey.Reveal(), APIVersion: o.APIVersion, Window: windowOf(o),
		MaxTokens: o.MaxTokens, Temperature: o.Temperature,
	}
	switch o.APIType {
	case config.LLMResponses:
		to.API = openai.Responses
	case config.LLMAzure:
		to.Azure = true
	case config.LLMOllama:
		to.BaseURL = cmp.Or(o.BaseURL, ollamaURL)
	}
	return to
}

// modelFindings report the configured models.
func modelFindings(cfg config.Config) (all []registration.Finding) {
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(cfg.NamedLLMs))...) {
		o, _ := cfg.FindLLM(name)
		if o.Model == "" {
			continue
		}
		section, key := "[llm]", "not set"
		if name != "" {
			section = "[llm." + name + "]"
		}
		if o.APIKey != "" {
			key = "set"
		}
		f := registration.Finding{Name: "model", Text: fmt.Sprintf("%s: %s (%s) at %s, API key %s", section, o.Model, o.APIType, cmp.Or(o.BaseURL, "the default address"), key)}
		if o.APIType == config.LLMScript {
			f.Text = fmt.Sprintf("%s: script %s", section, o.Model)
		} else if _, err := openModel(cfg, name); err != nil {
			f.Text, f.Hint = fmt.Sprintf("%s: %v", section, err), cmp.Or(sandpit.HintOf(err), "see docs/agent-models.md")
		}
		all = append(all, f)
	}
	return all
}

func windowOf(o config.LLM) int { return cmp.Or(o.Window, model.KnownWindow(o.Model)) }
