"""The plan: everything one run of a loader needs, frozen and JSON-serialisable.

A plan says what is sampled and how; which process samples it is the ``backend``'s affair, and never changes a batch.
"""

from gnnkit.plan.inputs import LABEL_COUNTS as LABEL_COUNTS
from gnnkit.plan.inputs import LABEL_KINDS as LABEL_KINDS
from gnnkit.plan.inputs import LABEL_NODES as LABEL_NODES
from gnnkit.plan.inputs import AnchorLabels as AnchorLabels
from gnnkit.plan.inputs import ExcludeEdges as ExcludeEdges
from gnnkit.plan.inputs import InputAnchors as InputAnchors
from gnnkit.plan.inputs import InputLinks as InputLinks
from gnnkit.plan.inputs import InputNodes as InputNodes
from gnnkit.plan.inputs import Inputs as Inputs
from gnnkit.plan.inputs import LabelLists as LabelLists
from gnnkit.plan.inputs import LabelOutput as LabelOutput
from gnnkit.plan.inputs import NegativeSampling as NegativeSampling
from gnnkit.plan.inputs import label_name as label_name
from gnnkit.plan.loader import PLAN_VERSION as PLAN_VERSION
from gnnkit.plan.loader import BatchForm as BatchForm
from gnnkit.plan.loader import Batching as Batching
from gnnkit.plan.loader import Held as Held
from gnnkit.plan.loader import LoaderPlan as LoaderPlan
from gnnkit.plan.loader import PadOption as PadOption
from gnnkit.plan.loader import Placement as Placement
from gnnkit.plan.loader import PlacementWord as PlacementWord
from gnnkit.plan.loader import Remainder as Remainder
from gnnkit.plan.loader import RuntimeOptions as RuntimeOptions
from gnnkit.plan.loader import Shape as Shape
from gnnkit.plan.loader import StoreRef as StoreRef
from gnnkit.plan.loader import num_batches as num_batches
from gnnkit.plan.loader import to_pad as to_pad
from gnnkit.plan.sampling import ClustersSampling as ClustersSampling
from gnnkit.plan.sampling import HGTSampling as HGTSampling
from gnnkit.plan.sampling import LaborDraws as LaborDraws
from gnnkit.plan.sampling import LayerWiseSampling as LayerWiseSampling
from gnnkit.plan.sampling import NeighborSampling as NeighborSampling
from gnnkit.plan.sampling import PPRChannel as PPRChannel
from gnnkit.plan.sampling import PPRSampling as PPRSampling
from gnnkit.plan.sampling import SaintSampling as SaintSampling
from gnnkit.plan.sampling import Sampling as Sampling
from gnnkit.plan.sampling import SubgraphType as SubgraphType
from gnnkit.plan.sampling import TemporalComparison as TemporalComparison
from gnnkit.plan.sampling import TemporalStrategy as TemporalStrategy
from gnnkit.plan.sampling import WalkSampling as WalkSampling
from gnnkit.plan.sampling import named as named
