package cli

import (
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	modelscript "github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// chooseModel sets the model and its limits: the file of --script, or a section of the configuration.
func (o *agentCommand) chooseModel(cfg config.Config, options *agent.Options) (err error) {
	if o.script != "" {
		options.Model, err = modelscript.Load(o.script)
		return err
	}
	if options.Model, err = openModel(cfg, o.model); err != nil {
		return err
	}
	section, _ := cfg.FindLLM(o.model) // openModel has found it
	options.MaxTokens, options.Budget.InputTokens = section.MaxTokens, section.MaxInputTokens
	return nil
}

// parsePrice parses --price: the prices of a million tokens of input and of output.
func parsePrice(text string) (agent.Price, error) {
	if text == "" {
		return agent.Price{}, nil
	}
	in, out, found := strings.Cut(text, ",")
	input, err := strconv.ParseFloat(strings.TrimSpace(in), 64)
	output, outErr := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if !found || err != nil || outErr != nil || !(input >= 0 && output >= 0 && input < 1e9 && output < 1e9) {
		return agent.Price{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--price %q: want two prices", text), "for example 3,15")
	}
	return agent.Price{Input: input, Output: output}, nil
}

// agentSecrets returns values of the configuration that results and transcripts never show.
func agentSecrets(cfg config.Config) []string {
	values := []string{cfg.APIKey.Reveal(), cfg.LLM.APIKey.Reveal(), cfg.Daytona.Key.Reveal(), cfg.Daytona.VNCPassword.Reveal(), cfg.E2BCloud.Key.Reveal()}
	for _, named := range cfg.NamedLLMs {
		values = append(values, named.APIKey.Reveal())
	}
	return values
}
