package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// runningSandbox is a sandbox in its engine.
type runningSandbox interface {
	engineDir() string
	record() (record, error)
}

// networkControl controls the egress gateway of one sandbox, and what its engine's dialer may
// open for it.
type networkControl struct {
	id      sandpit.ID
	sandbox runningSandbox
	trust   trustInstaller
	// grant is Provider.grantRanges.
	grant func(ctx context.Context, engineDir string, id sandpit.ID, p sandpit.NetworkPolicy, isNew bool) error
}

// setPolicy replaces the network rules.
//
// Conflict: the policy would change whether the sandbox is online.
func (c *networkControl) setPolicy(ctx context.Context, p sandpit.NetworkPolicy) error {
	if err := validateNetwork(p); err != nil {
		return err
	}
	rec, err := c.sandbox.record()
	if err != nil {
		return err
	}
	if rec.Spec.Network.Online != p.Online {
		return sandpit.Errorf(sandpit.Conflict, "whether a sandbox is online cannot be changed after creation")
	}
	if !p.Online {
		return nil // an offline sandbox has no rules
	}
	if err := c.replaceRules(ctx, rec.Spec.Network, p); err != nil {
		return err
	}
	if len(p.Headers) > 0 && len(rec.Spec.Network.Headers) == 0 {
		if err := c.installTrust(ctx); err != nil {
			return err
		}
	}
	rec.Spec.Network = p.Clone()
	return rewriteRecord(c.sandbox.engineDir(), rec)
}

// replaceRules replaces what the dialer may open, and then the rules of the gateway.
func (c *networkControl) replaceRules(ctx context.Context, old, next sandpit.NetworkPolicy) error {
	dir := c.sandbox.engineDir()
	hasDialer := true
	if _, err := os.Lstat(filepath.Join(dir, grantsName)); errors.Is(err, os.ErrNotExist) {
		hasDialer = false // an engine of an earlier version, whose gateways dial themselves
	}
	if hasDialer {
		if err := c.grant(ctx, dir, c.id, next, false); err != nil {
			return err
		}
	}
	_, err := c.call(ctx, request{Op: opPolicy, Policy: &next})
	if err != nil && hasDialer {
		undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialerLimit)
		defer cancel()
		err = errors.Join(err, c.grant(undoCtx, dir, c.id, old, false))
	}
	return err
}

// decisions returns the network log after a sequence number.
func (c *networkControl) decisions(ctx context.Context, after int64) ([]sandpit.NetworkDecision, error) {
	rec, err := c.sandbox.record()
	if err != nil || !rec.Spec.Network.Online {
		return nil, err
	}
	var all []sandpit.NetworkDecision
	for {
		rep, err := c.call(ctx, request{Op: opDecisions, After: after})
		if err != nil {
			return nil, fmt.Errorf("read the network log of sandbox %s: %w", c.id, err)
		}
		all = append(all, rep.Decisions...)
		if len(rep.Decisions) < decisionsPerReply {
			return all, nil
		}
		after = rep.Decisions[len(rep.Decisions)-1].Seq
	}
}

// restoreDecisions gives a new gateway the decisions of its predecessor.
func (c *networkControl) restoreDecisions(ctx context.Context, old []sandpit.NetworkDecision) error {
	for part := range slices.Chunk(old, decisionsPerReply) {
		if _, err := c.call(ctx, request{Op: opRecall, Decisions: part}); err != nil {
			return fmt.Errorf("restore the network log: %w", err)
		}
	}
	return nil
}

// traffic returns the counters of the gateway.
func (c *networkControl) traffic(ctx context.Context) (sandpit.NetworkStats, error) {
	rep, err := c.call(ctx, request{Op: opTraffic})
	if err == nil && rep.Traffic == nil {
		err = sandpit.Errorf(sandpit.Internal, "the gateway sent no figures")
	}
	if err != nil {
		return sandpit.NetworkStats{}, fmt.Errorf("measure the network of sandbox %s: %w", c.id, err)
	}
	return *rep.Traffic, nil
}

// explain returns what the gateway would decide about a target.
//
// Conflict: the sandbox is offline.
func (c *networkControl) explain(ctx context.Context, target string) ([]sandpit.NetworkDecision, error) {
	if err := c.checkOnline(); err != nil {
		return nil, err
	}
	rep, err := c.call(ctx, request{Op: opExplain, Target: target})
	if err != nil {
		return nil, fmt.Errorf("test the network of sandbox %s: %w", c.id, err)
	}
	return rep.Decisions, nil
}

// setSecrets adds and replaces secrets that headers refer to, and removes those without a
// value.
//
// Conflict: the sandbox is offline.
func (c *networkControl) setSecrets(ctx context.Context, secrets map[string]string) error {
	if err := network.CheckSecrets(secrets); err != nil {
		return err
	}
	if err := c.checkOnline(); err != nil {
		return err
	}
	if _, err := c.call(ctx, request{Op: opSecrets, Secrets: secrets}); err != nil {
		return fmt.Errorf("set network secrets of sandbox %s: %w", c.id, err)
	}
	return nil
}

// checkOnline returns a Conflict for an offline sandbox.
func (c *networkControl) checkOnline() error {
	rec, err := c.sandbox.record()
	if err == nil && !rec.Spec.Network.Online {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s is offline", c.id),
			"whether a sandbox is online cannot be changed after creation")
	}
	return err
}

// installTrust has programs inside trust the authority of the gateway.
func (c *networkControl) installTrust(ctx context.Context) error {
	rep, err := c.call(ctx, request{Op: opAuthority})
	if err == nil && len(rep.Authority) == 0 {
		err = sandpit.Errorf(sandpit.Internal, "the gateway has no authority")
	}
	if err == nil {
		err = c.trust.install(ctx, rep.Authority)
	}
	if err != nil {
		return fmt.Errorf("install the gateway's authority in the sandbox: %w", err)
	}
	return nil
}

// call makes a request to the sandbox's gateway. It waits while the gateway is restarted.
func (c *networkControl) call(ctx context.Context, req request) (reply, error) {
	req.ID = c.id
	dir := c.sandbox.engineDir()
	rep, f, err := callSocket(ctx, filepath.Join(dir, gatewaysName), string(c.id), req)
	if f != nil {
		_ = f.Close()
	}
	if sandpit.CodeOf(err) != sandpit.Gone {
		return rep, err
	}
	if _, statErr := os.Lstat(recordPath(dir, c.id)); statErr != nil {
		return rep, err
	}
	return rep, sandpit.Errorf(sandpit.Unavailable, "the sandbox's gateway did not answer: %w", err)
}

// newGatewayConfig returns what the engine needs to start a gateway with the policy, nil for
// an offline sandbox.
func (p *Provider) newGatewayConfig(policy sandpit.NetworkPolicy) *gatewayConfig {
	if !policy.Online {
		return nil
	}
	return &gatewayConfig{Policy: policy.Clone(), Roots: p.cfg.Roots}
}

// grantRanges tells the reaper of an engine what the dialer may open for a sandbox's gateway
// besides public addresses. isNew means that the gateway has not been started yet.
func (p *Provider) grantRanges(ctx context.Context, engineDir string, id sandpit.ID, n sandpit.NetworkPolicy, isNew bool) error {
	inside, err := policy.Ranges(n.Inside)
	if err != nil {
		return err
	}
	g := &dialer.Grant{Resolvers: p.cfg.Resolvers}
	for _, r := range inside {
		g.Inside = append(g.Inside, dialer.Range(r))
	}
	return sendGrant(ctx, engineDir, request{Op: opGrant, ID: id, Grant: g, Fresh: isNew})
}

// withdrawGrant removes the grant of a gateway that was not started. A grant that cannot be
// removed expires.
func withdrawGrant(ctx context.Context, engineDir string, id sandpit.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialerLimit)
	defer cancel()
	_ = sendGrant(ctx, engineDir, request{Op: opGrant, ID: id, Fresh: true})
}

func sendGrant(ctx context.Context, engineDir string, req request) error {
	_, f, err := callSocket(ctx, engineDir, grantsName, req)
	if f != nil {
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("grant addresses to the gateway: %w", err)
	}
	return nil
}

func validateNetwork(p sandpit.NetworkPolicy) error {
	_, err := policy.Parse(p)
	return err
}
