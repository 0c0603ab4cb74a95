"""The three networks, written to train fast and to save under the names that diffusers and transformers use.

ZImage       the diffusion transformer of Z-Image (diffusers: ZImageTransformer2DModel)
TextEncoder  Qwen3 (transformers: Qwen3Model), of which Z-Image reads hidden_states[-2]
Autoencoder  FLUX's AutoencoderKL without its 1x1 quantisation convolutions

They compute what the reference classes compute for captions padded to one multiple of 32 tokens, with
no attention mask, because nothing here needs one. export.py's result is what tests that.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------- shared


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight).to(x.dtype)


def parameter_count(module):
    return sum(p.numel() for p in module.parameters())


# ---------------------------------------------------------------- diffusion transformer

ADALN_WIDTH = 256


def rotate_interleaved(x, table):
    """x [batch, tokens, heads, width], table [tokens, width / 2, 2] of cosines and sines."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, width, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)
        self.norm_q = RMSNorm(width // heads, 1e-5)
        self.norm_k = RMSNorm(width // heads, 1e-5)
        self.to_out = nn.ModuleList([nn.Linear(width, width, bias=False)])

    def forward(self, x, table):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        q, k = rotate_interleaved(self.norm_q(q), table), rotate_interleaved(self.norm_k(k), table)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        hidden = int(width / 3 * 8)  # fixed by the architecture: pick widths that make it a multiple of 32
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, eps, modulated=True):
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)
        for name in ("attention_norm1", "ffn_norm1", "attention_norm2", "ffn_norm2"):
            setattr(self, name, RMSNorm(width, eps))
        self.modulated = modulated
        if modulated:
            self.adaLN_modulation = nn.Sequential(nn.Linear(min(width, ADALN_WIDTH), 4 * width))

    def forward(self, x, table, condition):
        if not self.modulated:
            x = x + self.attention_norm2(self.attention(self.attention_norm1(x), table))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        scale1, gate1, scale2, gate2 = self.adaLN_modulation(condition).unsqueeze(1).chunk(4, 2)
        x = x + gate1.tanh() * self.attention_norm2(self.attention(self.attention_norm1(x) * (1 + scale1), table))
        return x + gate2.tanh() * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * (1 + scale2)))


class FinalLayer(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(min(width, ADALN_WIDTH), width))

    def forward(self, x, condition):
        scale = 1 + self.adaLN_modulation(condition).unsqueeze(1)
        return self.linear(F.layer_norm(x, (x.shape[-1],), eps=1e-6) * scale)


class TimestepEmbedder(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, out))

    def forward(self, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(128, device=t.device, dtype=torch.float32) / 128)
        angles = t[:, None].float() * frequencies[None]
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1))


class ZImage(nn.Module):
    def __init__(
        self, dim, n_layers, n_heads, axes_dims, n_refiner_layers=1, cap_feat_dim=192, in_channels=16, norm_eps=1e-5
    ):
        super().__init__()
        assert sum(axes_dims) == dim // n_heads
        self.config = dict(
            dim=dim, n_layers=n_layers, n_refiner_layers=n_refiner_layers, n_heads=n_heads, n_kv_heads=n_heads,
            cap_feat_dim=cap_feat_dim, siglip_feat_dim=None, axes_dims=list(axes_dims), axes_lens=[1024, 512, 512],
            in_channels=in_channels, norm_eps=norm_eps, rope_theta=256.0, t_scale=1000.0, qk_norm=True,
            all_patch_size=[2], all_f_patch_size=[1],
        )  # fmt: skip
        self.axes_dims, self.tables = axes_dims, {}
        self.all_x_embedder = nn.ModuleDict({"2-1": nn.Linear(4 * in_channels, dim)})
        self.all_final_layer = nn.ModuleDict({"2-1": FinalLayer(dim, 4 * in_channels)})
        self.noise_refiner = nn.ModuleList([Block(dim, n_heads, norm_eps) for _ in range(n_refiner_layers)])
        self.context_refiner = nn.ModuleList([Block(dim, n_heads, norm_eps, False) for _ in range(n_refiner_layers)])
        self.t_embedder = TimestepEmbedder(min(dim, ADALN_WIDTH))
        self.cap_embedder = nn.Sequential(RMSNorm(cap_feat_dim, norm_eps), nn.Linear(cap_feat_dim, dim))
        self.x_pad_token = nn.Parameter(torch.zeros(1, dim))  # stays zero: 128 x 128 needs no image padding
        self.cap_pad_token = nn.Parameter(torch.randn(1, dim) * 0.02)
        self.layers = nn.ModuleList([Block(dim, n_heads, norm_eps) for _ in range(n_layers)])
        self._initialise()

    def _initialise(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 1 / math.sqrt(m.in_features))
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
        for m in self.modules():
            if isinstance(m, Block) and m.modulated:
                linear = m.adaLN_modulation[0]
                nn.init.normal_(linear.weight, 0, 1e-3)
                # gates start a little open: with closed ones, a deep stack of narrow blocks learns late
                linear.bias.data.view(4, -1)[1::2] = 0.2
            if isinstance(m, FinalLayer):
                nn.init.zeros_(m.linear.weight)
                nn.init.normal_(m.adaLN_modulation[1].weight, 0, 1e-3)

    def rope_tables(self, caption_length, rows, columns, device):
        """Captions lie on the first axis (1..n); the picture's tokens follow at n + 1, spread over the others."""
        key = (caption_length, rows, columns, str(device))
        if key not in self.tables:

            def table(ids):
                angles = []
                for axis, width in enumerate(self.axes_dims):
                    frequencies = 256.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
                    angles.append(ids[:, axis : axis + 1].double() * frequencies)
                angles = torch.cat(angles, 1).float()
                return torch.stack([angles.cos(), angles.sin()], -1).to(device)

            caption = torch.tensor([(1 + i, 0, 0) for i in range(caption_length)])
            picture = torch.tensor([(caption_length + 1, y, x) for y in range(rows) for x in range(columns)])
            self.tables[key] = table(picture), table(caption)
        return self.tables[key]

    def forward(self, latents, t, caption, valid):
        """latents [batch, 16, h, w]; t = 1 - sigma; caption [batch, n, width], valid [batch, n], n a multiple of 32.

        Returns the velocity x0 - noise (the pipeline negates it)."""
        batch, channels, height, width = latents.shape
        rows, columns = height // 2, width // 2
        x = latents.view(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 3, 5, 1)
        x = x.reshape(batch, rows * columns, 4 * channels)
        picture_table, caption_table = self.rope_tables(caption.shape[1], rows, columns, latents.device)
        condition = self.t_embedder(t * 1000.0)
        x = self.all_x_embedder["2-1"](x)
        for block in self.noise_refiner:
            x = block(x, picture_table, condition)
        c = self.cap_embedder(caption)
        c = torch.where(valid[..., None], c, self.cap_pad_token.to(c.dtype))
        for block in self.context_refiner:
            c = block(c, caption_table, None)
        tokens = x.shape[1]
        x = torch.cat([x, c.to(x.dtype)], 1)
        table = torch.cat([picture_table, caption_table], 0)
        for block in self.layers:
            x = block(x, table, condition)
        x = self.all_final_layer["2-1"](x[:, :tokens], condition)
        x = x.view(batch, rows, columns, 2, 2, channels).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(batch, channels, height, width)


# ---------------------------------------------------------------- text encoder


class QwenAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, head_width, eps):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width
        self.q_proj = nn.Linear(width, heads * head_width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_width, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_width, bias=False)
        self.o_proj = nn.Linear(heads * head_width, width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(head_width, eps), RMSNorm(head_width, eps)

    def forward(self, x, table):
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, -1))).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        cos, sin = table

        def rotate(a):  # half-split, unlike the transformer's interleaved pairs
            a = a.float()
            low, high = a.chunk(2, -1)
            return (a * cos + torch.cat([-high, low], -1) * sin).to(v.dtype)

        groups = self.heads // self.kv_heads
        k, v = (a.repeat_interleave(groups, 1) for a in (rotate(k), v))
        out = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class QwenMLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class QwenLayer(nn.Module):
    def __init__(self, width, heads, kv_heads, head_width, hidden, eps):
        super().__init__()
        self.self_attn = QwenAttention(width, heads, kv_heads, head_width, eps)
        self.mlp = QwenMLP(width, hidden)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width, eps), RMSNorm(width, eps)

    def forward(self, x, table):
        x = x + self.self_attn(self.input_layernorm(x), table)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextEncoder(nn.Module):
    """Evaluates all but the last layer. That one and the final norm exist (untrained) so that a checkpoint is whole."""

    def __init__(self, vocabulary=2048, width=192, layers=3, heads=3, kv_heads=1, head_width=64, hidden=384, eps=1e-6):
        super().__init__()
        self.config = dict(
            vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=kv_heads, head_dim=head_width, intermediate_size=hidden, rms_norm_eps=eps,
            rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=512,
        )  # fmt: skip
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [QwenLayer(width, heads, kv_heads, head_width, hidden, eps) for _ in range(layers)]
        )
        self.norm = RMSNorm(width, eps)
        self.head_width, self.tables = head_width, {}
        nn.init.normal_(self.embed_tokens.weight, 0, 0.5)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 1 / math.sqrt(m.in_features))
        for layer in self.layers:
            layer.self_attn.o_proj.weight.data.mul_(0.5)
            layer.mlp.down_proj.weight.data.mul_(0.5)
        for p in [*self.layers[-1].parameters(), *self.norm.parameters()]:
            p.requires_grad_(False)

    def forward(self, ids):
        key = (ids.shape[1], str(ids.device))
        if key not in self.tables:
            frequencies = 1e6 ** (-torch.arange(0, self.head_width, 2).float() / self.head_width)
            angles = torch.arange(ids.shape[1]).float()[:, None] * frequencies
            angles = torch.cat([angles, angles], -1).to(ids.device)
            self.tables[key] = angles.cos(), angles.sin()
        x = self.embed_tokens(ids)
        for layer in self.layers[:-1]:
            x = layer(x, self.tables[key])
        return x


# ---------------------------------------------------------------- autoencoder


class GroupNorm(nn.GroupNorm):
    def forward(self, x):
        """Stays in the activations' dtype; autocast would go to f32 and double the memory traffic."""
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class ResnetBlock(nn.Module):
    def __init__(self, source, target, groups):
        super().__init__()
        self.norm1 = GroupNorm(groups, source, 1e-6)
        self.conv1 = nn.Conv2d(source, target, 3, padding=1)
        self.norm2 = GroupNorm(groups, target, 1e-6)
        self.conv2 = nn.Conv2d(target, target, 3, padding=1)
        if source != target:
            self.conv_shortcut = nn.Conv2d(source, target, 1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x):
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x) + h


class SpatialAttention(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.group_norm = GroupNorm(groups, channels, 1e-6)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x):
        h = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = (f(h).unsqueeze(1) for f in (self.to_q, self.to_k, self.to_v))
        h = self.to_out[0](F.scaled_dot_product_attention(q, k, v)[:, 0])
        return x + h.transpose(1, 2).reshape(x.shape)


class MidBlock(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.resnets = nn.ModuleList([ResnetBlock(channels, channels, groups) for _ in range(2)])
        self.attentions = nn.ModuleList([SpatialAttention(channels, groups)])

    def forward(self, x):
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Resampler(nn.Module):
    def __init__(self, channels, up):
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, padding=1) if up else nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x):
        if not self.up:
            return self.conv(F.pad(x, (0, 1, 0, 1)))
        # nearest doubling by expand, in channels-last order: its gradient is a plain sum, much faster than
        # that of F.interpolate
        b, c, h, w = x.shape
        y = x.permute(0, 2, 3, 1)[:, :, None, :, None, :].expand(b, h, 2, w, 2, c)
        return self.conv(y.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2))


class Level(nn.Module):
    """All resnets of one resolution, then the step to the next."""

    def __init__(self, source, target, resnets, groups, up, resample):
        super().__init__()
        self.resnets = nn.ModuleList(
            [ResnetBlock(source if k == 0 else target, target, groups) for k in range(resnets)]
        )
        self.resampler = ("upsamplers" if up else "downsamplers") if resample else None
        if resample:
            setattr(self, self.resampler, nn.ModuleList([Resampler(target, up)]))

    def forward(self, x):
        for resnet in self.resnets:
            x = resnet(x)
        return getattr(self, self.resampler)[0](x) if self.resampler else x


class Encoder(nn.Module):
    def __init__(self, channels, resnets, groups, latents):
        super().__init__()
        self.conv_in = nn.Conv2d(3, channels[0], 3, padding=1)
        sources = [channels[0], *channels[:-1]]
        self.down_blocks = nn.ModuleList(
            Level(s, t, resnets, groups, False, k < len(channels) - 1) for k, (s, t) in enumerate(zip(sources, channels))
        )
        self.mid_block = MidBlock(channels[-1], groups)
        self.conv_norm_out = GroupNorm(groups, channels[-1], 1e-6)
        self.conv_out = nn.Conv2d(channels[-1], 2 * latents, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    def __init__(self, channels, resnets, groups, latents):
        super().__init__()
        targets = channels[::-1]
        sources = [targets[0], *targets[:-1]]
        self.conv_in = nn.Conv2d(latents, targets[0], 3, padding=1)
        self.mid_block = MidBlock(targets[0], groups)
        self.up_blocks = nn.ModuleList(
            Level(s, t, resnets + 1, groups, True, k < len(channels) - 1)
            for k, (s, t) in enumerate(zip(sources, targets))
        )
        self.conv_norm_out = GroupNorm(groups, targets[-1], 1e-6)
        self.conv_out = nn.Conv2d(targets[-1], 3, 3, padding=1)

    def forward(self, z):
        x = self.mid_block(self.conv_in(z))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Autoencoder(nn.Module):
    """The last two levels are equally narrow, so that no resnet at full resolution needs a shortcut or wide maps."""

    def __init__(self, channels=(32, 32, 96, 96), resnets=1, groups=8, latents=16):
        super().__init__()
        self.latents = latents
        self.config = dict(
            in_channels=3, out_channels=3, block_out_channels=list(channels), layers_per_block=resnets,
            norm_num_groups=groups, latent_channels=latents, act_fn="silu", sample_size=128,
            down_block_types=["DownEncoderBlock2D"] * len(channels),
            up_block_types=["UpDecoderBlock2D"] * len(channels),
            use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=True, force_upcast=False,
        )  # fmt: skip
        self.encoder = Encoder(list(channels), resnets, groups, latents)
        self.decoder = Decoder(list(channels), resnets, groups, latents)

    def encode(self, pictures):
        """Mean and log variance [batch, 16, h / 8, w / 8]."""
        return self.encoder(pictures).float().chunk(2, 1)
