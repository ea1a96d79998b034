# The public names, each from the module it lives in. Python reads them here as well.
from evert.bridge.agent import Outcome as Outcome
from evert.bridge.check import check_env as check_env
from evert.bridge.dataset import AgentDataset as AgentDataset
from evert.bridge.dataset import AgentDatasetBuilder as AgentDatasetBuilder
from evert.bridge.env import ChatAgentEnv as ChatAgentEnv
from evert.bridge.errors import AgentAborted as AgentAborted
from evert.bridge.errors import AgentError as AgentError
from evert.bridge.errors import AgentTimeoutError as AgentTimeoutError
from evert.bridge.errors import BlockingCallError as BlockingCallError
from evert.bridge.errors import EnvCheckError as EnvCheckError
from evert.bridge.errors import EnvClosedError as EnvClosedError
from evert.bridge.errors import EnvStateError as EnvStateError
from evert.bridge.errors import EpisodeEndedError as EpisodeEndedError
from evert.bridge.errors import EvertError as EvertError
from evert.bridge.errors import InvalidAgentError as InvalidAgentError
from evert.bridge.errors import InvalidDatasetError as InvalidDatasetError
from evert.bridge.errors import InvalidModelError as InvalidModelError
from evert.bridge.errors import MissingPackageError as MissingPackageError
from evert.bridge.errors import RendererMismatchError as RendererMismatchError
from evert.bridge.errors import RewardError as RewardError
from evert.bridge.explain import explain as explain
from evert.bridge.faces.client import AgentClient as AgentClient
from evert.bridge.faces.client import BlockingAgentClient as BlockingAgentClient
from evert.bridge.faces.process import ProcessAgent as ProcessAgent
from evert.bridge.group import ChatAgentGroupBuilder as ChatAgentGroupBuilder
from evert.bridge.models import RemoteModel as RemoteModel
from evert.bridge.scripted import ScriptedPolicy as ScriptedPolicy
from evert.bridge.weights import TinkerModel as TinkerModel
from evert.envs.games import Game as Game
from evert.envs.games import GameError as GameError
from evert.envs.gym.arguments import EnvArgumentError as EnvArgumentError
from evert.envs.gym.registration import register_agent as register_agent
from evert.trainers.engine.engine import embedded_engine as embedded_engine
from evert.trainers.train import train as train

__version__: str
